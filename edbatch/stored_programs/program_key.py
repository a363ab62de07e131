"""Keys of lowered programs: hashes of everything that the programs depend on.

These are the computations of the types' cells (their jaxprs, and the `jax.custom_jvp`
rules if the function differentiates), the way in which their rows are read, the loops,
the options, the structure of the parameters, JAX's settings and version, and the
sources of edbatch that make programs.
"""

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from edbatch import memory_planner
from edbatch.cell.cell_graph import CellGraph
from edbatch.cell.jaxpr import Body, equations_of
from edbatch.cell.type_call import traced_type
from edbatch.executor.program import ProgramShape
from edbatch.graph.node_type import NodeType
from edbatch.graph.parameters import describe
from edbatch.graph.type_table import TypeTable
from edbatch.stored_programs.content import Content, UnknownContentError, digest_of

# Settings do not affect tracing if their names contain one of these words.
_OTHER_SETTINGS = ("cache", "log", "traceback", "profil", "nans", "infs")
_SOURCES = (
    *("*.py", "graph", "cell", "stream", "executor", "gradient"),
    "stored_programs",
)


def program_key(
    what: Any, program: ProgramShape, static: Any, *, differentiates: bool
) -> str | None:
    """Returns the key of a function of a program.

    Args:
        what: Identifies the function.
        program: The program.
        static: Everything else that it depends on: shapes and dtypes of its arguments.
        differentiates: Whether it belongs to a backward pass. If not, `jax.custom_jvp`
            rules are not part of the key and are not traced: tracing them before the
            first gradient would fix the values of outer variables that they read.

    Returns:
        The key, equal in all processes; None if a cell, or a part of it, cannot be
        hashed by content.
    """
    settings = _settings()
    key = (program_key, program, settings, differentiates)
    [found] = program.types.derived(key, lambda: [_content_of(program, differentiates)])
    if found is None:
        return None
    try:
        return digest_of((what, found, settings, static, differentiates))
    except UnknownContentError:
        return None


def _content_of(program: ProgramShape, with_rules: bool) -> str | None:
    content = Content()
    types = program.types
    paths, _ = jax.tree.flatten_with_path(types.params_spec)
    try:
        content.put((_environment(), types.x64, types.compute_dtype))
        content.put([(jax.tree_util.keystr(path), leaf) for path, leaf in paths])
        content.put((program.loops, program.arena_rows, program.type_rows))
        content.put((program.options, program.chunks))
        content.put([(k, _aval(types, k)) for k, _ in program.arena_rows])
        for type_id in sorted({loop.type_id for loop in program.loops}):
            _put_type(content, program, type_id, with_rules)
    except UnknownContentError:
        return None
    return content.digest()


def _put_type(
    content: Content, program: ProgramShape, type_id: int, with_rules: bool
) -> None:
    """Adds a type's computation, and the array kinds that it reads and writes."""
    node_type, types = program._type(type_id), program.types
    content.put((type_id, str(node_type.key), _template(node_type)))
    for kinds in (
        node_type.operand_kinds,
        node_type.external_kinds,
        node_type.output_kinds,
    ):
        content.put([(kind, _aval(types, kind)) for kind in kinds])
    family = node_type.family
    content.put(family and (family.leaves, family.sources, family.entries))
    content.put(_cell_digest(node_type, types, with_rules))


def _cell_digest(node_type: NodeType, types: TypeTable, with_rules: bool) -> str:
    """Returns the hash of a cell's equations; computed once for all programs."""
    graph, specs = traced_type(node_type, types)

    def make() -> tuple[str | None, str]:
        content = Content(with_rules=with_rules)
        try:
            content.put_body(_body(graph))
            content.put(specs)
        except UnknownContentError as error:
            return None, str(error)
        return content.digest(), ""

    key = (_cell_digest, node_type, _settings(), with_rules)
    digest, problem = types.derived(key, make)
    if digest is None:
        raise UnknownContentError(problem)
    return digest


def _body(graph: CellGraph) -> Body:
    equations = equations_of(graph.nodes)
    if len(equations) != len(graph.nodes):
        raise UnknownContentError("a cell that is not as it was traced")
    inputs = (*graph.parameters, *graph.inputs)
    return Body(inputs, dict(graph.constants), equations, graph.outputs)


def _template(node_type: NodeType) -> tuple[Any, ...]:
    """Call structure of a cell, without constants: they are in its equations."""
    template = node_type.template
    leaves = [
        (kind, describe(content._steps))
        if kind == "parameter"
        else (kind, None if kind == "static" else content)
        for kind, content in template.leaves
    ]
    return leaves, template.operands, template.externals, template.paddings


def _aval(types: TypeTable, kind: int) -> tuple[Any, ...]:
    return types.avals[kind].shape, types.avals[kind].dtype


def _settings() -> tuple[tuple[str, str], ...]:
    """All settings of JAX in this thread that may change what is traced."""
    values = jax.config.values  # some settings are not attributes of `jax.config`
    return tuple(
        (name, repr(getattr(jax.config, name, values[name])))
        for name in _setting_names()
    )


@functools.cache
def _setting_names() -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted(jax.config.values)
        if not any(word in name for word in _OTHER_SETTINGS)
    )


@functools.cache
def _environment() -> tuple[str, ...]:
    """Versions, the platform, and a hash of the sources."""
    sources = hashlib.sha256()
    for file in _source_files():
        content = file.read_bytes()
        sources.update(f"{file.name}:{len(content)}:".encode())
        sources.update(content)
    device = jax.devices()[0]
    return (
        jax.__version__,
        version("jaxlib"),
        jax.default_backend(),
        device.device_kind,
        sources.hexdigest(),
    )


def _source_files() -> list[Path]:
    root = Path(__file__).resolve().parents[1]
    files = [*Path(memory_planner.__file__).parent.glob("*.py")]
    files += [
        file
        for each in _SOURCES
        for file in root.glob(each if "*" in each else f"{each}/**/*.py")
    ]
    return sorted(files)
