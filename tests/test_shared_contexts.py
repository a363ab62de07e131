"""Programs share an MLIR context, except those lowered during another lowering."""

import threading

from jax._src.interpreters import mlir


def test_a_context_is_used_again_and_not_for_ever():
    contexts = [mlir.make_ir_context() for _ in range(250)]
    assert 3 <= len({*contexts}) <= 4


def test_what_is_lowered_meanwhile_has_its_own():
    own = mlir.make_ir_context()
    with own:
        assert mlir.make_ir_context() is not own


def test_each_thread_has_its_own():
    found = []
    thread = threading.Thread(target=lambda: found.append(mlir.make_ir_context()))
    thread.start()
    thread.join()
    assert found[0] is not mlir.make_ir_context()
