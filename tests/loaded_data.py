"""Data sets and transforms that a loader's worker processes read."""

import atexit
import os
import signal
import time

import jax
import numpy as np
from jax._src import xla_bridge
from trees import sample_trees

import edbatch as eb


@eb.cell
def double(params, x):
    return params * x


class Trees:
    """Trees that are generated when they are read."""

    def __init__(self, count, folder=None):
        self.count = count
        self.folder = folder  # each process that reads creates a file here

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        if self.folder is not None:
            (self.folder / str(os.getpid())).touch()
        return sample_trees(k, 1)[0]


class Failing(Trees):
    """Trees of which one cannot be read."""

    def __init__(self, count, bad, error):
        super().__init__(count)
        self.bad = bad
        self.error = error

    def __getitem__(self, k):
        if k == self.bad:
            fail(self.error)
        return super().__getitem__(k)


class Unpicklable(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def fail(error):
    if error == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if error == "exits":
        raise SystemExit(3)
    if error == "exits slowly":
        atexit.register(time.sleep, 2)
        raise SystemExit(3)
    if error == "hangs":
        time.sleep(600)
    if error == "unpicklable":
        raise Unpicklable("this", "that")
    raise KeyError(error)


def replace_word(tree, rng):
    """Changes the leaves of a tree at random."""
    if isinstance(tree, int):
        return int(rng.integers(10))
    return tuple(replace_word(each, rng) for each in tree)


class Clients:
    """Number of XLA clients of the reading process, and its settings."""

    def __len__(self):
        return 4

    def __getitem__(self, k):
        platforms = os.environ.get("JAX_PLATFORMS") == "cpu"
        ignores = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        facts = (
            len(xla_bridge._backends),
            platforms,
            ignores,
            jax.config.jax_numpy_rank_promotion == "raise",
        )
        return np.array(facts, np.int32)


def word_of(element):
    return element["word"]


class Opened:
    """A part of an instance that the receiving process cannot unpickle."""

    def __getstate__(self):
        return {"path": "data"}

    def __setstate__(self, state):
        raise FileNotFoundError("no such file as this instance opens")


class EndsAtFive:
    """Data whose `__getitem__` calls `next` on an empty iterator for one instance."""

    def __len__(self):
        return 9

    def __getitem__(self, number):
        return sample_trees(0, 9)[number] if number != 5 else next(iter(()))
