"""Workloads: a ready model together with the data that it runs on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from edbatch.data import Vocabulary
from edbatch.data.files import Paths


@dataclass(frozen=True)
class Workload:
    """A model for one instance, its parameters, and where its instances come from.

    Word numbers are always below `vocabulary_size`: words that are too rare for it are
    unknown words, number 0. So parameters need not know the data.

    Attributes:
        name: The name by which `get_workload` finds it.
        description: What it is, in one sentence.
        vocabulary_size: Number of words that the parameters have vectors for.
        model: ``model(params, instance)``, ordinary Python over cells.
        init_params: ``init_params(key, hidden)`` samples well-scaled parameters.
        read_text: Reads files into instances whose words are still strings.
        words: Lists the words of such an instance.
        number: ``number(instances, vocabulary)`` gives what the model takes.
        sample: ``sample(rng, count)`` draws instances of realistic size and shape.
    """

    name: str
    description: str
    vocabulary_size: int
    model: Callable[[Any, Any], Any]
    init_params: Callable[[Array, int], Any]
    read_text: Callable[[Paths], list[Any]]
    words: Callable[[Any], Iterable[str | int]]
    number: Callable[[list[Any], Vocabulary], list[Any]]
    sample: Callable[[np.random.Generator, int], list[Any]]

    def vocabulary(self, text: Iterable[Any]) -> Vocabulary:
        """Numbers the words of a data set by frequency.

        Args:
            text: Instances as from `read_text`.

        Returns:
            The vocabulary, no larger than `vocabulary_size`.
        """
        return Vocabulary(
            (word for each in text for word in self.words(each)),
            max_size=self.vocabulary_size,
        )

    def read(self, path: Paths, vocabulary: Vocabulary | None = None) -> list[Any]:
        """Reads instances that the model takes.

        Args:
            path: A file, a folder, or several of them.
            vocabulary: The numbers of the words; made from these very files by
                default.

        Returns:
            The instances, in the order of the files.

        Raises:
            DataError: A file is missing or malformed.

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
        text = self.read_text(path)
        return self.number(text, vocabulary or self.vocabulary(text))
