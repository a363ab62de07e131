"""Scheduling policies, their training and their file format."""

from edbatch.policies.heuristics import Agenda, Depth, Greedy
from edbatch.policies.policy_file import load_policy
from edbatch.policies.registry import get_policy

__all__ = ["Agenda", "Depth", "Greedy", "get_policy", "load_policy"]
