"""A primitive that can be traced and batched but not lowered."""

from jax.extend.core import Primitive
from jax.interpreters import batching

import edbatch as eb

never_lowered = Primitive("never_lowered")
never_lowered.def_abstract_eval(lambda x: x)
batching.primitive_batchers[never_lowered] = lambda args, dims: (
    never_lowered.bind(*args),
    dims[0],
)


@eb.cell
def uncompiled(params, x):
    return never_lowered.bind(x)
