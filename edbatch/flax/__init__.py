"""Modules of Flax, linen's and nnx's, as cells. `import edbatch` leaves this out."""

from edbatch.flax.cells import cell

__all__ = ["cell"]
