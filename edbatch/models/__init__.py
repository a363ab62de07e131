"""Ready cells and models, each written for one instance, and the workloads they make.

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

from edbatch.models.errors import WorkloadError
from edbatch.models.registry import WORKLOADS, get_workload
from edbatch.models.workload import Workload

__all__ = ["WORKLOADS", "Workload", "WorkloadError", "get_workload"]
