"""Workloads: a ready model together with the data that it runs on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from edbatch.data import LabelledVocabulary, PairVocabulary, Vocabulary
from edbatch.data.files import Paths
from edbatch.data.vocabulary import UNKNOWN
from edbatch.errors import WorkloadError

# What numbers the words of a workload: two of them where it has two languages, and more
# where its instances have labels.
Vocabularies = Vocabulary | PairVocabulary | LabelledVocabulary


class Labels(NamedTuple):
    """A kind of label that a workload's instances have, such as tags.

    Attributes:
        name: The kind, a plural noun.
        of: Lists the labels of an instance.
        most: How many have a number of their own; rarer ones share one.
        numbers: How many numbers there are, if not as many.
    """

    name: str
    of: Callable[[Any], Iterable[str | int]]
    most: int
    numbers: int | None = None


@dataclass(frozen=True)
class Workload:
    """A model for one instance, its parameters, and where its instances come from.

    Word numbers are always below `vocabulary_size`: words that are too rare for it are
    unknown words, number 0. So parameters need not know the data.

    Attributes:
        name: The name by which `get_workload` finds it.
        description: What it is, in one sentence.
        reads: The format of the files that it reads, a noun.
        vocabulary_size: Number of words that the parameters have vectors for.
        model: ``model(params, instance)``, ordinary Python over cells.
        init_params: ``init_params(key, hidden)`` samples well-scaled parameters.
        read_text: Reads files into instances whose words are still strings.
        words: Lists the words of such an instance.
        number: ``number(instances, vocabulary)`` replaces words and labels by their
            numbers; the vocabulary is as from `vocabulary`.
        sample: ``sample(rng, count)`` draws instances of realistic size and shape.
        min_count: Words that occur less often in a data set are unknown.
        target_words: Lists the words of the other language, if an instance has two;
            they have a vocabulary of their own, no larger than that of `words`.
        labels: The kinds of label of its instances, which are numbered, too.
        decode: ``decode(params, instance)``, for models that follow their own choices:
            ordinary Python that looks at values by `edbatch.value`. It reads of an
            instance what is known beforehand; `model` is then its training form, which
            follows the instance. None where the model chooses nothing.
        zoo_data: Public data that its ready-made policy, ``zoo:<name>``, is trained on,
            as paths below one folder; empty where it has none.
    """

    name: str
    description: str
    reads: str
    vocabulary_size: int
    model: Callable[[Any, Any], Any]
    init_params: Callable[[Array, int], Any]
    read_text: Callable[[Paths], list[Any]]
    words: Callable[[Any], Iterable[str | int]]
    number: Callable[[list[Any], Any], list[Any]]
    sample: Callable[[np.random.Generator, int], list[Any]]
    min_count: int = 1
    target_words: Callable[[Any], Iterable[str | int]] | None = None
    labels: tuple[Labels, ...] = ()
    decode: Callable[[Any, Any], Any] | None = None
    zoo_data: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Says what it is in one line."""
        return f"<Workload {self.name!r}: {self.description}>"

    def vocabulary(self, text: Iterable[Any]) -> Vocabularies:
        """Numbers the words of a data set by frequency, and its labels.

        Args:
            text: Instances as from `read_text`.

        Returns:
            The vocabulary, no larger than `vocabulary_size`; a `PairVocabulary` where
            the workload has two languages, a `LabelledVocabulary` where it has labels.
        """
        text = list(text)
        found = []
        for words in (self.words, self.target_words):
            if words is not None:
                own = [word for each in text for word in words(each)]
                if text and not own:  # as of programs that take no value
                    own = [UNKNOWN]
                found.append(
                    Vocabulary(
                        own, min_count=self.min_count, max_size=self.vocabulary_size
                    )
                )
        if self.target_words:
            return PairVocabulary(*found)
        if self.labels:
            return LabelledVocabulary(found[0], self.number_labels(text))
        return found[0]

    def number_labels(self, text: Iterable[Any]) -> dict[str, Vocabulary]:
        """Numbers the labels of a data set by frequency.

        Args:
            text: Instances as from `read_text`.

        Returns:
            The vocabulary of each kind of label, by its name.
        """
        text = list(text)
        return {
            each.name: Vocabulary(
                (label for one in text for label in each.of(one)),
                max_size=each.most,
            )
            for each in self.labels
        }

    def check_vocabulary(self, vocabulary: Vocabularies) -> None:
        """Checks that a vocabulary numbers all that instances have.

        Args:
            vocabulary: The vocabulary.

        Raises:
            WorkloadError: It is for one language and the workload has two, or the other
                way round; or it lacks the labels.
        """
        kind: type[Any] = PairVocabulary if self.target_words else Vocabulary
        names = [each.name for each in self.labels]
        if self.labels:
            kind = LabelledVocabulary
        if not isinstance(vocabulary, kind):
            raise WorkloadError(
                f"workload {self.name!r} takes a {kind.__name__} but this is a"
                f" {type(vocabulary).__name__}; make it with workload.vocabulary(text)"
            )
        if names and sorted(vocabulary.labels) != sorted(names):
            raise WorkloadError(
                f"workload {self.name!r} has the labels {', '.join(names)} but this"
                f" vocabulary has {', '.join(vocabulary.labels) or 'none'};"
                " make it with workload.vocabulary(text)"
            )

    def read(self, path: Paths, vocabulary: Vocabularies | None = None) -> list[Any]:
        """Reads instances that the model takes.

        Args:
            path: A file, a folder, or several of them.
            vocabulary: The numbers of words and labels; made from these very files by
                default. What a model was trained on numbers what it is tested on.

        Returns:
            The instances, in the order of the files.

        Raises:
            DataError: A file is missing or malformed.
            WorkloadError: As from `check_vocabulary`.

        Example:
            >>> import pathlib, tempfile
            >>> from edbatch.models import get_workload
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     file = pathlib.Path(folder, "a.ptb")
            ...     _ = file.write_text("(S (NP (DT a) (NN dog)) (VP (VBZ barks)))")
            ...     [tree] = get_workload("tree-lstm").read(file)
            >>> print(tree)
            (S (NP (DT 1) (NN 2)) (VP 3))
        """
        if vocabulary is not None:
            self.check_vocabulary(vocabulary)
        text = self.read_text(path)
        return self.number(text, vocabulary or self.vocabulary(text))
