"""From what a user names as a policy to the policy."""

from collections.abc import Callable
from os import PathLike, path

from edbatch.errors import PolicyError, nearest
from edbatch.policies.heuristics import Agenda, Depth, Greedy
from edbatch.policies.policy_file import load_policy
from edbatch.schedule.policy import Policy

HEURISTICS: dict[str, Callable[[], Policy]] = {
    "depth": Depth,
    "agenda": Agenda,
    "greedy": Greedy,
}
# For policies that may be published with edbatch.
_RESERVED = "zoo:"


def get_policy(spec: str | PathLike[str] | Policy) -> Policy:
    """Finds a policy.

    Args:
        spec: `"depth"`, `"agenda"` or `"greedy"`; the path of a policy file, which
            ends in ``.json`` or exists; or a policy, which is returned.

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
        if not spec.startswith(_RESERVED) and (
            spec.endswith(".json") or path.isfile(spec)
        ):
            return load_policy(spec)
        raise PolicyError(
            "a policy is the name of a heuristic or the path of a .json file but this"
            f" is {spec!r}; {nearest(spec, HEURISTICS)}"
        )
    if _is_policy(spec):
        return spec
    raise PolicyError(
        "a policy is a name, a path, or an object with a name and a method"
        f" schedule(structure) but this is {spec!r}; pass 'greedy', the path of a .json"
        " file, or an instance of a policy class"
    )


def _is_policy(value: object) -> bool:
    # A policy class has the attributes of the protocol too.
    return isinstance(value, Policy) and not isinstance(value, type)
