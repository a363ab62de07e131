"""No module of edbatch has a bounded `lru_cache`: one entry too many makes it slow.

A cached value belongs to the object it depends on (a table of types, a model's state, a
compiled function) and is freed with it. Generators of synthetic data may cache arrays
that depend only on a number.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_import_direction import PROJECT_ROOT, module_files

import edbatch as eb
from edbatch.graph import output_recording


def bounded_caches(tree: ast.AST) -> Iterator[int]:
    """Lines that use ``lru_cache``; an unbounded cache is written ``cache``."""
    for node in ast.walk(tree):
        match node:
            case ast.Name("lru_cache") | ast.Attribute(attr="lru_cache"):
                yield node.lineno


def test_no_bounded_caches():
    found = [
        f"{file.relative_to(PROJECT_ROOT)}:{line}: a bounded cache of a module"
        for module, file in module_files(PROJECT_ROOT)
        if not module.startswith("edbatch.data.")
        for line in bounded_caches(ast.parse(Path(file).read_text()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "@lru_cache(maxsize=8)\ndef f(x): ...",
        "@functools.lru_cache\ndef f(x): ...",
        "g = lru_cache(8)(f)",
    ],
)
def test_a_bounded_cache_is_found(source):
    assert [*bounded_caches(ast.parse(source))] == [1]


def test_other_caches_are_not():
    assert not [*bounded_caches(ast.parse("@cache\ndef f(x): ...\nlru = 3"))]


def test_structures_of_outputs_are_kept_with_the_types_of_their_model():
    cell = eb.cell(lambda params, x: params * x, name="scaled")
    batched = eb.batch(lambda params, x: {f"key {x}": cell(params, x)}, params=2.0)
    module_level = [*vars(output_recording).values()]
    assert not any(hasattr(each, "cache_info") for each in module_level)
    batched.record(1.0)
    derived = batched.types._derived
    assert (output_recording._dict_structure, ("key 1.0",)) in derived
