"""Workloads: a ready model with its parameters and the data that it runs on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from edbatch.data import LabelledVocabulary, PairVocabulary, Vocabulary
from edbatch.data.files import Paths
from edbatch.data.vocabulary import UNKNOWN
from edbatch.errors import WorkloadError

# The vocabulary of a workload: two for workloads with two languages, and one more for
# each kind of label.
Vocabularies = Vocabulary | PairVocabulary | LabelledVocabulary


class Labels(NamedTuple):
    """One kind of label of a workload's instances, such as tags.

    Attributes:
        name: The name of the kind, a plural noun.
        of: Lists the labels of an instance.
        most: Maximum size of the label vocabulary, the unknown label included; rarer
            labels become unknown.
        numbers: Number of label indices in instances, if it differs from ``most``.
    """

    name: str
    of: Callable[[Any], Iterable[str | int]]
    most: int
    numbers: int | None = None


@dataclass(frozen=True)
class Workload:
    """A model for one instance, its parameters, and the sources of its instances.

    Word indices are always below `vocabulary_size`: words too rare for it become the
    unknown word, index 0. So the shapes of the parameters do not depend on the data.

    Attributes:
        name: The name by which `get_workload` finds the workload.
        description: Description of the workload in one sentence.
        reads: The format of the files that `read_text` reads, as a noun phrase.
        vocabulary_size: Number of words that have vectors in the parameters.
        model: ``model(params, instance)``, ordinary Python over cells.
        init_params: ``init_params(key, hidden)`` samples well-scaled parameters.
        read_text: Reads files into instances whose words are still strings.
        words: Lists the words of such an instance.
        number: ``number(instances, vocabulary)`` replaces words and labels by their
            indices in a vocabulary that the method `vocabulary` returned.
        sample: ``sample(rng, count)`` draws instances of realistic size and shape.
        min_count: Words that occur less often in a data set become unknown.
        target_words: Lists the words of the second language, if instances have two;
            they have their own vocabulary, limited to `vocabulary_size` as well.
        labels: The kinds of label of the instances; labels are indexed like words.
        decode: ``decode(params, instance)``, for models that follow their own
            decisions: ordinary Python that reads values by `edbatch.value`. It reads
            only the parts of an instance that are known before decoding; `model` is
            then the training form, which follows the decisions in the instance. None
            for models without decisions.
        zoo_data: Public data that the workload's ready-made policy, ``zoo:<name>``, is
            trained on, as paths below one folder; empty if it has no such policy.
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
        """Summary in one line."""
        return f"<Workload {self.name!r}: {self.description}>"

    def vocabulary(self, text: Iterable[Any]) -> Vocabularies:
        """Builds the vocabulary of a data set's words and labels, by frequency.

        Args:
            text: Instances, as returned by `read_text`.

        Returns:
            The vocabulary, no larger than `vocabulary_size`: a `PairVocabulary` if the
            workload has two languages, a `LabelledVocabulary` if it has labels.
        """
        text = list(text)
        found = []
        for words in (self.words, self.target_words):
            if words is not None:
                own = [word for each in text for word in words(each)]
                if text and not own:  # for example programs without values
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
        """Builds the vocabularies of a data set's labels, by frequency.

        Args:
            text: Instances, as returned by `read_text`.

        Returns:
            The vocabulary of each kind of label, by the kind's name.
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
        """Checks that a vocabulary is of the workload's kind.

        Args:
            vocabulary: The vocabulary.

        Raises:
            WorkloadError: The vocabulary is for one language and the workload has two,
                or vice versa; or their kinds of labels differ.
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
        """Reads files into instances that the model takes.

        Args:
            path: A file, a folder, or several of them.
            vocabulary: The vocabulary of words and labels; by default it is built from
                the files. For test data, pass the vocabulary of the training data.

        Returns:
            The instances, in the order of the files.

        Raises:
            DataError: A file is missing or malformed.
            WorkloadError: As for `check_vocabulary`.

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
