"""Compares packed random cells with the cells themselves."""

import pytest
from packed_cells import assert_equal, results, run_compiled, spec
from random_cells import random_cell

from edbatch.cell import pack_cell

OPTIONS = (
    {},
    {"overhead": 1_000_000},
    {"overhead": 1_000},
    {"overhead": 0},
)


def pack(cell, seed):
    options = OPTIONS[seed % len(OPTIONS)]
    return pack_cell(cell.function, spec(cell.params), *spec(cell.inputs), **options)


def check(seeds, *, length, casts=False):
    """Checks cells in one compiled program.

    Returns the share of cells with fewer products than before, among those that had
    several.
    """
    cells = [random_cell(seed, casts=casts, length=1 + seed % length) for seed in seeds]
    packed = [pack(*each) for each in zip(cells, seeds, strict=True)]

    def run(arguments):
        return [
            results(cell.function, one, *each)
            for cell, one, each in zip(cells, packed, arguments, strict=True)
        ]

    pairs = run_compiled(run, [(each.params, each.inputs) for each in cells])
    tolerance = 0.1 if casts else 3e-4
    for seed, (expected, found) in zip(seeds, pairs, strict=True):
        name = f"cell {seed}"
        assert_equal(found, expected, rtol=tolerance, atol=tolerance, name=name)
    several = [each for each in packed if each.before.num_products > 1]
    merged = [
        one for one in several if one.after.num_products < one.before.num_products
    ]
    return len(merged) / len(several)


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_sixty_cells(first):
    assert check(range(first, first + 15), length=6) > 0.85


def test_cells_that_cast():
    assert check(range(15), length=6, casts=True) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 10))
def test_two_thousand_larger_cells(first):
    assert check(range(first, first + 10), length=16) > 0.85
