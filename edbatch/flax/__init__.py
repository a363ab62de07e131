"""Flax modules, linen and nnx, as cells. `import edbatch` does not import this.

Gain: no speed of its own. Without it, a module's variables, state and generators have
to be passed by hand in a function of parameters and arrays.
"""

from edbatch.flax.cells import cell

__all__ = ["cell"]
