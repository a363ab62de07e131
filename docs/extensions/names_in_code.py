"""Links from names in code to the reference.

Docstrings write names in single backticks, pages write ``eb.batch`` or ``jax.jit``.
They become links where this reference, or one of ``docs/inventories/``, has the name.
A text that looks like a name of edbatch and is none fails a strict build. What edbatch
has inside and no package exports stays plain code.
"""

import importlib
import re
from typing import Any

from docutils import nodes
from docutils.nodes import Element
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyXRefRole
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util.typing import ExtensionMetadata

_OWN = re.compile(r"(?:eb|edbatch)((?:\.[A-Za-z_]\w*)+)(?:\(\))?")
_OTHERS = re.compile(
    r"((?:jax|numpy|optax|flax|gymnasium)(?:\.[A-Za-z_]\w*)+)(?:\(\))?"
)
_TYPE_VARIABLE = re.compile(r"[A-Z]")  # in signatures; no reference has a page for it
_OF_THE_PAST = ("changelog",)  # names what is no more
# Where classes are defined that other projects document under a shorter name.
_ALIASES = {
    "Figure": "matplotlib.figure.Figure",
    "_pickle.PicklingError": "pickle.PicklingError",
    "_pickle.UnpicklingError": "pickle.UnpicklingError",
    "concurrent.futures._base.Future": "concurrent.futures.Future",
    "flax.linen.module.Module": "flax.linen.Module",
    "flax.nnx.module.Module": "flax.nnx.Module",
    "gymnasium.core.Env": "gymnasium.Env",
    "jax._src.mesh.Mesh": "jax.sharding.Mesh",
    "jax.jaxlib._jax.Array": "jax.Array",
    "jaxlib._jax.Array": "jax.Array",
    "optax._src.base.GradientTransformation": "optax.GradientTransformation",
    "optax.transforms._accumulation.MultiSteps": "optax.MultiSteps",
    "numpy.random._generator.Generator": "numpy.random.Generator",
}


def _own_name(text: str) -> str | None:
    own = _OWN.fullmatch(text)
    return own and "edbatch" + own[1]


def exists_inside(name: str) -> bool:
    """Returns whether `name` is a module or object of edbatch, exported or not."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


class NameRole(PyXRefRole):
    """A name in a docstring, which may be one of the reference or any other code."""

    def process_link(
        self,
        env: BuildEnvironment,
        refnode: Element,
        has_explicit_title: bool,
        title: str,
        target: str,
    ) -> tuple[str, str]:
        """Makes the reference one to an object of any kind."""
        title, target = super().process_link(
            env, refnode, has_explicit_title, title, target
        )
        own = _own_name(target)
        refnode["reftype"] = "obj"
        refnode["may_be_code"] = own is None
        return title, own or target


class NamesInPages(SphinxTransform):
    """Makes references of code in the text of pages that is a name."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Wraps each literal that is such a name."""
        if self.env.docname in _OF_THE_PAST:
            return
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            own, other = _own_name(text), _OTHERS.fullmatch(text)
            if not (own or other) or _is_linked(literal):
                continue
            reference = addnodes.pending_xref(
                "",
                literal.deepcopy(),
                refdomain="py",
                reftype="obj",
                reftarget=own or (other and other[1]),
                refdoc=self.env.docname,
                refexplicit=True,
                refwarn=True,
            )
            reference["may_be_code"] = own is None
            reference.source, reference.line = literal.source, literal.line
            literal.replace_self(reference)


def _is_linked(node: nodes.Node) -> bool:
    while node := node.parent:
        if isinstance(node, nodes.reference | addnodes.pending_xref):
            return True
    return False


def _use_documented_name(
    app: Sphinx, env: BuildEnvironment, node: Element, content: nodes.TextElement
) -> None:
    """Before intersphinx looks: gives a class the name that its project documents."""
    target = node.get("reftarget", "")
    node["reftarget"] = _ALIASES.get(target, target)


def _leave_code(
    app: Sphinx, env: BuildEnvironment, node: Element, content: nodes.TextElement
) -> nodes.TextElement | None:
    """After all others looked: leaves what is no name of the reference as it is."""
    target = node.get("reftarget", "")
    objects = env.domains.python_domain.objects
    public = any(
        target.startswith(f"{name}.") and found.objtype in ("class", "exception")
        for name, found in objects.items()
    )
    inside = target.startswith("edbatch.") and not public and exists_inside(target)
    plain = inside or _TYPE_VARIABLE.fullmatch(target)
    return content if node.get("may_be_code") or plain else None


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the role, which `default_role` names, and the transform."""
    app.add_role_to_domain("py", "name", NameRole())
    app.add_transform(NamesInPages)
    app.connect("missing-reference", _use_documented_name, priority=100)
    app.connect("missing-reference", _leave_code, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
