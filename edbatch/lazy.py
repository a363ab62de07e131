"""Lazy imports: names of `edbatch` whose dependencies load on first use.

`import edbatch` loads JAX, NumPy and Numba. Modules that need gymnasium, Flax or Optax
are imported on first access, by the package's ``__getattr__`` (PEP 562). Gymnasium has
its own registry of environments, so `edbatch/Batching-v0` is registered as soon as both
packages are imported, in either order.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

# The module that defines each name; a name may be a module itself.
_HOLDERS = {"BatchingEnv": "edbatch.envs"}
_MODULES = {
    name: f"edbatch.{name}" for name in ("envs", "flax", "grain", "sparse", "training")
}


def __getattr__(name: str) -> object:
    """Imports a lazy attribute of `edbatch` on first access."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOLDERS:
        return getattr(importlib.import_module(_HOLDERS[name]), name)
    raise AttributeError(f"module 'edbatch' has no attribute {name!r}")


def register_environment() -> None:
    """Registers the environment with gymnasium, now or when gymnasium is imported."""
    if "gymnasium" in sys.modules:
        importlib.import_module("edbatch.envs.registration")
    elif not any(isinstance(each, _GymnasiumFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumFinder())


class _GymnasiumFinder(MetaPathFinder):
    """Import hook that registers the environment once gymnasium is imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(Loader):
    """Loads gymnasium with its own loader, then registers the environment."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None, "gymnasium was found by its spec"
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        register_environment()


register_environment()
