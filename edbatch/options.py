"""The checked options of `edbatch.batch` for planning minibatches."""

from dataclasses import dataclass, field

import numpy as np

from edbatch.arguments import check_number, check_type, is_positive, is_whole
from edbatch.compiler import Compiler
from edbatch.errors import PlanError, PolicyError, shown
from edbatch.memory_planner.planner import Planner
from edbatch.memory_planner.sizes import Sizes
from edbatch.policies.cost.model import CostModel
from edbatch.schedule.policy import Policy


@dataclass(frozen=True)
class Search:
    """Time limit or beam width of the search for fewer batches than the policy finds.

    Attributes:
        milliseconds: Time limit per schedule. The schedule found depends on the speed
            of the machine.
        width: How many states the search keeps per layer, without a time limit, so that
            results are reproducible; overrides `milliseconds`.

    Raises:
        PolicyError: The time or the width is not positive, or the width is not a whole
            number.

    Example:
        >>> Search(width=8).width
        8
    """

    milliseconds: float = 20.0
    width: int | None = None

    def __post_init__(self) -> None:
        if not is_positive(self.milliseconds):
            raise PolicyError(
                "a search takes a number of milliseconds above 0 but this is"
                f" {shown(self.milliseconds)}; leave search= out for no search"
            )
        if self.width is not None and not (is_whole(self.width) and self.width >= 1):
            raise PolicyError(
                "a search keeps a whole number of states per layer, 1 or more, but its"
                f" width is {shown(self.width)}; leave it out to go by time"
            )


@dataclass(frozen=True, eq=False)  # hashed by identity: a part of cache keys
class Options:
    """Options of a batched function, whether for one device or for several.

    Attributes:
        policy: The policy that schedules minibatches.
        sizes: Widths and buckets.
        planner: How memory is planned.
        compiler: How cells are compiled.
        costs: Measured costs of batches; None if none were given.
        cache_bytes: Memory limit of cached plans, for each structure of parameters.
        compute_dtype: The dtype that cells compute in; None for that of parameters and
            inputs.

    Raises:
        PlanError: An option has the wrong type.
    """

    policy: Policy
    sizes: Sizes = field(default_factory=Sizes)
    planner: Planner = field(default_factory=Planner)
    compiler: Compiler = field(default_factory=Compiler)
    costs: CostModel | None = None
    cache_bytes: int = 256 * 2**20
    compute_dtype: np.dtype | None = None

    def __post_init__(self) -> None:
        kinds = {"sizes": Sizes, "planner": Planner, "compiler": Compiler}
        for name, kind in kinds.items():
            what = f"an eb.{kind.__name__}(...), or left out"
            value = getattr(self, name)
            check_type(PlanError, f"{name} of eb.batch", value, kind, what)
        name = "cache_bytes of eb.batch"
        check_number(PlanError, name, self.cache_bytes, 0, whole=True)
