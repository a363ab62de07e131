"""Arrays that a cell closes over keep their values of tracing time in all programs.

NumPy arrays can change in place between the trace of a cell and a later compilation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiered_runs import run_until_fine

import edbatch as eb
from edbatch.stored_programs.folder import FOLDER, Folder

PARAMS = jnp.float32(2)
SIZES = eb.Sizes(widths=(8,))


class Table:
    """A model whose cell reads an array, directly and inside a jitted function."""

    def __init__(self, **options):
        self.array = array = np.ones(3, np.float32)
        inner = jax.jit(lambda x: x * array)

        @eb.cell
        def scale(params, x):
            return params * (inner(x) + jnp.asarray(array))

        @eb.cell
        def ask(x):
            return x.sum()

        def asking(params, x):
            return scale(params, x * np.float32(eb.value(ask(x)) > 0))

        self.batched = eb.batch(scale, params=PARAMS, sizes=SIZES, **options)
        self.asking = eb.batch(asking, params=PARAMS, sizes=SIZES)


def instances(count):
    return [np.full(3, k + 1, np.float32) for k in range(count)]


def expected(count):
    return [[2.0 * (k + 2)] * 3 for k in range(count)]


@pytest.fixture
def table():
    return Table()


def test_minibatches_of_other_sizes(table):
    for count in (3, 300):
        assert table.batched(PARAMS, instances(count)).tolist() == expected(count)
        table.array[:] = 10


def test_the_fine_program(table):
    with eb.use_tiers("auto"):
        assert table.batched(PARAMS, instances(3)).tolist() == expected(3)
        table.array[:] = 10
        coarse, fine = run_until_fine(table.batched, PARAMS, instances(3))
    assert [each.tolist() for each in (*coarse, fine)] == [expected(3)] * (
        len(coarse) + 1
    )


def test_gradients(table):
    plan = table.batched.plan(instances(3))

    def loss(params):
        return table.batched.apply(params, plan).sum()

    for _ in range(3):
        value, slope = jax.value_and_grad(loss)(PARAMS)
        assert (value, slope) == (54, 27)
        table.array[:] = 10
    assert jax.jit(jax.grad(loss))(PARAMS) == 27


def test_values_on_the_way(table):
    for count in (3, 40):
        found = table.asking(PARAMS, instances(count))
        assert np.asarray(found).tolist() == expected(count)
        table.array[:] = 10


def test_a_server(table):
    with eb.Server(table.asking, PARAMS) as server:
        for count in (1, 40):
            futures = server.submit_many(instances(count))
            found = [each.result().tolist() for each in futures]
            assert found == expected(count)
            table.array[:] = 10


def test_another_process_finds_a_program_of_its_own_values(tmp_path, monkeypatch):
    monkeypatch.setattr(Folder, "path", tmp_path)
    monkeypatch.setattr(FOLDER, "_warned", False)
    first = Table()
    first.batched(PARAMS, instances(3))
    first.array[:] = 10
    first.batched(PARAMS, instances(300))
    assert list(tmp_path.rglob("*"))
    for count in (3, 300):
        assert Table().batched(PARAMS, instances(count)).tolist() == expected(count)
    other = Table()
    other.array[:] = 10
    found = other.batched(PARAMS, instances(3))
    assert found.tolist() == [[2.0 * (10 * (k + 1) + 10)] * 3 for k in range(3)]
