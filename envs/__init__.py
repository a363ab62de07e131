"""The gymnasium environment in which graphs are scheduled."""

from edbatch.envs.agent_policy import Agent, AgentPolicy
from edbatch.envs.batching_env import INVALID_ACTION_REWARD, BatchingEnv
from edbatch.envs.registration import ENV_ID, register
from edbatch.envs.samplers import (
    Sampler,
    join_instances,
    sample_dag_structure,
    sample_lattice_structure,
    sample_tree_structure,
)

__all__ = [
    "ENV_ID",
    "INVALID_ACTION_REWARD",
    "Agent",
    "AgentPolicy",
    "BatchingEnv",
    "Sampler",
    "join_instances",
    "register",
    "sample_dag_structure",
    "sample_lattice_structure",
    "sample_tree_structure",
]
