"""Finds policies by name or file."""

from collections.abc import Callable
from importlib import resources
from os import PathLike, path

from edbatch.errors import PolicyError, nearest, shown
from edbatch.policies.files.policy_file import load_policy, parse_policy
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.heuristics import Agenda, AgendaRemaining, Depth, Greedy
from edbatch.schedule.policy import Policy, is_policy

HEURISTICS: dict[str, Callable[[], Policy]] = {
    "depth": Depth,
    "agenda": Agenda,
    "agenda-remaining": AgendaRemaining,
    "greedy": Greedy,
}
# Prefix of policies that come with edbatch, made by experiments/make_zoo.py.
_ZOO = "zoo:"


def get_policy(spec: str | PathLike[str] | Policy) -> Policy:
    """Finds a policy by name or file.

    Args:
        spec: `"depth"`, `"agenda"`, `"agenda-remaining"` or `"greedy"`; ``"zoo:"`` and
            the name of a workload for a policy that comes with edbatch, see
            `zoo_names`; the path of a policy file, which ends in ``.json`` or exists;
            or a policy, which is returned unchanged.

    Returns:
        The policy.

    Raises:
        PolicyError: There is no such policy, or its file cannot be read.

    Example:
        >>> get_policy("greedy").name
        'greedy'
    """
    if isinstance(spec, PathLike):
        return load_policy(spec)
    if isinstance(spec, str):
        if spec in HEURISTICS:
            return HEURISTICS[spec]()
        if spec.startswith(_ZOO):
            return _from_zoo(spec)
        if spec.endswith(".json") or path.isfile(spec):
            return load_policy(spec)
        known = [*HEURISTICS, *(_ZOO + name for name in zoo_names())]
        raise PolicyError(
            "a policy is the name of a heuristic, zoo:NAME, or the path of a .json file"
            f" but this is {shown(spec)}; {nearest(spec, known)}"
        )
    if is_policy(spec):
        return spec
    raise PolicyError(
        "a policy is a name, a path, or an object with a name and a method"
        f" schedule(structure) but this is {shown(spec)}; pass 'greedy', the path of a"
        " .json file, or an instance of a policy class"
    )


def is_policy_name(text: str) -> bool:
    """Returns whether a text is a heuristic's name or zoo:NAME.

    Example:
        >>> is_policy_name("greedy"), is_policy_name("zoo:tree-lstm")
        (True, True)
        >>> is_policy_name("mine.json")
        False
    """
    return text in HEURISTICS or text.startswith(_ZOO)


def zoo_names() -> tuple[str, ...]:
    """Lists the policies that come with edbatch, by the workload they are for.

    Example:
        >>> "lattice-lstm" in zoo_names()
        True
    """
    files = resources.files("edbatch.policies").joinpath("zoo").iterdir()
    names = (each.name for each in files)
    return tuple(sorted(n.removesuffix(".json") for n in names if n.endswith(".json")))


def _from_zoo(spec: str) -> StateMachine:
    name = spec.removeprefix(_ZOO)
    if name not in zoo_names():
        raise PolicyError(
            "a ready-made policy is zoo: and the name of its workload but this is"
            f" {spec!r}; {nearest(name, zoo_names())}"
        )
    file = resources.files("edbatch.policies").joinpath("zoo", f"{name}.json")
    return parse_policy(file.read_text(encoding="utf-8"), spec)
