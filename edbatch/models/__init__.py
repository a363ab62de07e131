"""Ready workloads: a model for one instance, its parameters, and its data.

Every module of this package is a workload, whose name is that of the module with ``-``
for ``_``, and whose function ``workload(**options)`` builds it. `WORKLOADS` lists them
and imports one when it is asked for. What several share is in `edbatch.models.shared`.

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
