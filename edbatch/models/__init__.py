"""Ready workloads: a model for one instance, its parameters, and its data.

Each module of this package defines one workload. The workload's name is the module's
name with ``-`` for ``_``; the module's function ``workload(**options)`` builds it.
`WORKLOADS` lists all workloads and imports a module only when its workload is looked
up. Shared parts are in `edbatch.models.shared`.

Example:
    >>> import jax
    >>> import numpy as np
    >>> import edbatch as eb
    >>> workload = get_workload("tree-lstm", vocabulary_size=100)
    >>> trees = workload.sample(np.random.default_rng(0), 3)
    >>> params = workload.init_params(jax.random.key(0), hidden=8)
    >>> eb.batch(workload.model)(params, trees)["state"].shape
    (3, 8)
"""

from edbatch.errors import WorkloadError
from edbatch.models.shared.registry import WORKLOADS, get_workload
from edbatch.models.shared.workload import Workload

__all__ = ["WORKLOADS", "Workload", "WorkloadError", "get_workload"]
