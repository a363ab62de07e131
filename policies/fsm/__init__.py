"""Finite state machines: how they see a frontier, and how they are trained.

Tuned weights and the learned table take 0.02 to 0.04 times the lower bound off lattices
and programs, and nothing off trees, beside the smoothed bound that they start from
(`experiments/policy_parts.py`, docs/results-policies.md).
"""
