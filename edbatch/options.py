"""What planning goes by: the options of `edbatch.batch`, checked."""

from dataclasses import dataclass, field

from edbatch.arguments import check_number, check_type
from edbatch.errors import PlanError
from edbatch.memory_planner.planner import Planner
from edbatch.memory_planner.sizes import Sizes
from edbatch.policies.cost.model import CostModel
from edbatch.schedule.policy import Policy


@dataclass(frozen=True, eq=False)  # so that it can be a part of keys of caches
class Options:
    """Options of a batched function, the same on one device and on several.

    Attributes:
        policy: The policy that schedules minibatches.
        sizes: Widths and buckets.
        planner: How memory is planned.
        costs: Measured costs of batches, if they were given.
        cache_bytes: Memory for plans, for each structure of parameters.

    Raises:
        PlanError: An option is of another type.
    """

    policy: Policy
    sizes: Sizes = field(default_factory=Sizes)
    planner: Planner = field(default_factory=Planner)
    costs: CostModel | None = None
    cache_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        for name, kind in (("sizes", Sizes), ("planner", Planner)):
            what = f"an eb.{kind.__name__}(...), or left out"
            value = getattr(self, name)
            check_type(PlanError, f"{name} of eb.batch", value, kind, what)
        name = "cache_bytes of eb.batch"
        check_number(PlanError, name, self.cache_bytes, 0, whole=True)
