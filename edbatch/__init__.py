"""Automatic batching of dynamic neural networks on JAX.

Write a model for one instance out of cells; `batch` runs a minibatch of instances as a
few wide operations in one compiled program.
"""

import edbatch.ctrl_c  # noqa: F401, first: Ctrl-C may come during the others

# isort: split
from typing import TYPE_CHECKING

from edbatch.batched import Batched
from edbatch.batched_function import BatchedFunction
from edbatch.compilation import (
    Compilation,
    CompileReport,
    TieredFunction,
    compile_report,
    jit,
    set_stance,
    use_compilation_cache,
    use_tiers,
    wait_for_compilations,
)
from edbatch.compiler import Compiler
from edbatch.device_choice import DeviceChoice, choose_devices
from edbatch.errors import (
    ArgumentError,
    CellError,
    CompilationError,
    DeadlineError,
    EdbatchError,
    LoaderError,
    PickleError,
    PlanError,
    PolicyError,
    RecordingError,
    ServerClosedError,
    ServerError,
    ServerFullError,
    VerificationError,
)
from edbatch.executor.kept_memory import keep_memory
from edbatch.explain import Explanation
from edbatch.front_door import batch
from edbatch.graph import (
    Cell,
    DataflowGraph,
    Handle,
    TypeKey,
    cell,
    cell_keys,
    recording_is_compiled,
    value,
)
from edbatch.lazy import __getattr__ as __getattr__
from edbatch.loader import Loader, LoaderReport, Minibatch
from edbatch.memory_planner import Planner, Sizes
from edbatch.options import Search
from edbatch.plan import (
    GradientMemory,
    Plan,
    PlanReport,
    Ragged,
    gradient_memory,
)
from edbatch.policies import get_policy, load_policy
from edbatch.schedule import FrontierPolicy, Policy, Schedule
from edbatch.serving import Server, ServerStats
from edbatch.sharding import ShardedPlan, ShardedReport, use_cpu_devices
from edbatch.sharding.sharded import Sharded
from edbatch.verify import Verification, verify

if TYPE_CHECKING:
    from edbatch.envs import BatchingEnv

__all__ = [
    "ArgumentError",
    "Batched",
    "BatchedFunction",
    "BatchingEnv",
    "Cell",
    "CellError",
    "Compilation",
    "CompilationError",
    "CompileReport",
    "Compiler",
    "DataflowGraph",
    "DeadlineError",
    "DeviceChoice",
    "EdbatchError",
    "Explanation",
    "FrontierPolicy",
    "GradientMemory",
    "Handle",
    "Loader",
    "LoaderError",
    "LoaderReport",
    "Minibatch",
    "PickleError",
    "Plan",
    "PlanError",
    "PlanReport",
    "Planner",
    "Policy",
    "PolicyError",
    "Ragged",
    "RecordingError",
    "Schedule",
    "Search",
    "Server",
    "ServerClosedError",
    "ServerError",
    "ServerFullError",
    "ServerStats",
    "Sharded",
    "ShardedPlan",
    "ShardedReport",
    "Sizes",
    "TieredFunction",
    "TypeKey",
    "Verification",
    "VerificationError",
    "batch",
    "cell",
    "cell_keys",
    "choose_devices",
    "compile_report",
    "get_policy",
    "gradient_memory",
    "jit",
    "keep_memory",
    "load_policy",
    "recording_is_compiled",
    "set_stance",
    "use_compilation_cache",
    "use_cpu_devices",
    "use_tiers",
    "value",
    "verify",
    "wait_for_compilations",
]
