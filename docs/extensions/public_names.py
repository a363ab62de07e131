"""The reference: what packages export, from its docstrings.

``.. public-names:: edbatch.policies`` writes a table of names and the documentation of
each. Names may stand below it, one group per directive; without any it takes all that
the package exports and that stand in no group before. Whatever a public package exports
and no page documents is a warning, which `make docs` turns into an error.
"""

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

import edbatch

LOGGER = logging.getLogger(__name__)
# Packages that a walk from `edbatch` does not show in an editable install.
_MAPPED = ("edbatch.envs", "edbatch.memory_planner", "edbatch.policies")
# Bases whose members are not repeated.
_FOREIGN_BASES = "object, tuple, Exception, Env, Mapping, Sequence, Protocol, Generic"


@functools.cache
def public_packages() -> list[str]:
    """Returns the names of all packages that export something."""
    found = ["edbatch", *_MAPPED]
    for start in ("edbatch", *_MAPPED):
        path = importlib.import_module(start).__path__
        found += [
            info.name for info in pkgutil.walk_packages(path, f"{start}.") if info.ispkg
        ]
    return sorted({name for name in found if exported(name)})


def exported(package: str) -> list[str]:
    """Returns what a package exports, in the order of ``__all__``."""
    return list(getattr(importlib.import_module(package), "__all__", ()))


@functools.cache
def home_of(package: str, name: str) -> str:
    """Returns the first of the packages that export this object under this name."""
    found = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return package
    for other in public_packages():
        same = getattr(importlib.import_module(other), name, None) is found
        if same and name in exported(other):
            return other
    return package


class PublicNames(SphinxDirective):
    """Documents names that a package exports."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Returns a table of the names, and the documentation of each."""
        [package] = self.arguments
        grouped = self.env.temp_data.setdefault("public_names", set())
        rest = [name for name in exported(package) if name not in grouped]
        names = " ".join(self.content).split() or rest
        if not names:
            return []
        grouped.update(names)
        unknown = {*names} - {*exported(package)}
        if unknown:
            raise self.error(f"{package} does not export {', '.join(sorted(unknown))}")
        lines = [f".. py:currentmodule:: {package}", "", *_table(package, names)]
        for name in names:
            if home_of(package, name) == package:
                lines += _documentation(package, name)
        container = nodes.container()
        content = StringList(lines, source=f"<names of {package}>")
        self.state.nested_parse(content, self.content_offset, container)
        return container.children


def _table(package: str, names: list[str]) -> Iterator[str]:
    yield from (".. list-table::", "   :widths: 30 70", "")
    for name in names:
        found = getattr(importlib.import_module(package), name)
        first = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
        yield f"   * - :py:obj:`{name} <{home_of(package, name)}.{name}>`"
        yield f"     - {first if _has_docstring(found) else f'``{_shown(found)}``'}"
    yield ""


def _has_docstring(found: object) -> bool:
    """Whether it has one of its own, and not that of its class, as numbers do."""
    return inspect.isclass(found) or inspect.isroutine(found)


def _documentation(package: str, name: str) -> list[str]:
    found = getattr(importlib.import_module(package), name)
    full = f"{package}.{name}"
    if not _has_docstring(found):
        return [f".. py:data:: {name}", f"   :value: {_shown(found)}", ""]
    if not inspect.isclass(found):
        return [f".. autofunction:: {full}", ""]
    kind = "autoexception" if issubclass(found, Exception) else "autoclass"
    lines = [f".. {kind}:: {full}"]
    if _has_inner_base(found):
        lines.append(f"   :inherited-members: {_FOREIGN_BASES}")
    return [*lines, ""]


def _shown(constant: object) -> str:
    text = repr(constant)
    return text if len(text) < 200 else f"{type(constant).__name__}(...)"


@functools.cache
def _has_inner_base(found: type) -> bool:
    """Whether a class has members from one of edbatch that has no page of its own."""
    return any(
        base.__module__.startswith("edbatch.")
        and not any(base.__name__ in exported(package) for package in public_packages())
        for base in found.__mro__[1:]
    )


def show_defaults(
    app: Sphinx,
    what: str,
    name: str,
    found: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Writes defaults as code: of a dataclass's factories there is only a sign."""
    return signature and re.sub(r"<[^<>]*>", "...", signature), returned


def check_all_documented(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns of every public name that has no place in the reference."""
    objects = env.domains.python_domain.objects
    for package in public_packages():
        for name in exported(package):
            full = f"{home_of(package, name)}.{name}"
            if full not in objects:
                LOGGER.warning("no page of the reference documents %s", full)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the directive and the check."""
    assert edbatch.__all__, "the package is installed"
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", show_defaults)
    app.connect("env-check-consistency", check_all_documented)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
