"""Workloads: a ready model together with the data that it runs on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from edbatch.data import PairVocabulary, Vocabulary
from edbatch.data.files import Paths
from edbatch.errors import WorkloadError

# What numbers the words of a workload: two of them where it has two languages.
Vocabularies = Vocabulary | PairVocabulary


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
        number: ``number(instances, vocabulary)`` replaces words by their numbers.
        sample: ``sample(rng, count)`` draws instances of realistic size and shape.
        min_count: Words that occur less often in a data set are unknown.
        target_words: Lists the words of the other language, if an instance has two;
            they have a vocabulary of their own, no larger than that of `words`.
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
    decode: Callable[[Any, Any], Any] | None = None
    zoo_data: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Says what it is in one line."""
        return f"<Workload {self.name!r}: {self.description}>"

    def vocabulary(self, text: Iterable[Any]) -> Vocabularies:
        """Numbers the words of a data set by frequency.

        Args:
            text: Instances as from `read_text`.

        Returns:
            The vocabulary, no larger than `vocabulary_size`; a `PairVocabulary` where
            the workload has two languages.
        """
        text = list(text)
        found = [
            Vocabulary(
                (word for each in text for word in words(each)),
                min_count=self.min_count,
                max_size=self.vocabulary_size,
            )
            for words in (self.words, self.target_words)
            if words is not None
        ]
        return PairVocabulary(*found) if self.target_words else found[0]

    def read(self, path: Paths, vocabulary: Vocabularies | None = None) -> list[Any]:
        """Reads instances that the model takes.

        Args:
            path: A file, a folder, or several of them.
            vocabulary: The numbers of the words; made from these very files by
                default.

        Returns:
            The instances, in the order of the files.

        Raises:
            DataError: A file is missing or malformed.
            WorkloadError: The vocabulary is for one language and the workload has two,
                or the other way round.

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
        kind = PairVocabulary if self.target_words else Vocabulary
        if vocabulary is not None and not isinstance(vocabulary, kind):
            raise WorkloadError(
                f"workload {self.name!r} takes a {kind.__name__} but this is a"
                f" {type(vocabulary).__name__}; make it with workload.vocabulary(text)"
            )
        text = self.read_text(path)
        return self.number(text, vocabulary or self.vocabulary(text))
