"""Modules of Flax, linen's and nnx's, as cells. `import edbatch` leaves this out.

Gain: no speed of its own. Without it, a module's variables, state and generators have
to be taken apart by hand in a function of parameters and arrays.
"""

from edbatch.flax.cells import cell

__all__ = ["cell"]
