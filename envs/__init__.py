"""Gymnasium environments for scheduling graphs and for serving requests.

Gain (docs/results-policies.md, "Third-party agents"): agents of other libraries can be
trained and run as policies; on word lattices, MaskablePPO runs 75.8 batches and greedy
84.2.
"""

from edbatch.envs.agent_policy import Agent, AgentPolicy
from edbatch.envs.batching_env import INVALID_ACTION_REWARD, BatchingEnv
from edbatch.envs.registration import ENV_ID, SERVING_ID, register
from edbatch.envs.samplers import (
    Sampler,
    join_instances,
    sample_dag_structure,
    sample_lattice_structure,
    sample_tree_structure,
)
from edbatch.envs.serving_env import ServingEnv, observe_serving, sample_library

__all__ = [
    "ENV_ID",
    "INVALID_ACTION_REWARD",
    "SERVING_ID",
    "Agent",
    "AgentPolicy",
    "BatchingEnv",
    "Sampler",
    "ServingEnv",
    "join_instances",
    "observe_serving",
    "register",
    "sample_dag_structure",
    "sample_lattice_structure",
    "sample_library",
    "sample_tree_structure",
]
