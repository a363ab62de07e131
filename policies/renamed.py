"""Renamed public names: the old ones work for one more version, with a warning."""

import importlib
import warnings

_NEW_NAMES = {"Guarded": "BestOfHeuristics", "Searched": "BeamSearch"}


def __getattr__(name: str) -> object:
    """Returns the object that `edbatch.policies` exported under an old name."""
    if name not in _NEW_NAMES:
        raise AttributeError(f"module 'edbatch.policies' has no attribute {name!r}")
    new = _NEW_NAMES[name]
    warnings.warn(
        f"edbatch.policies.{name} is now edbatch.policies.{new}; the old name ends with"
        " the next version, so use the new one",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module("edbatch.policies"), new)
