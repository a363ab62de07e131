"""Finite state machines: encodings of the frontier, tables and training.

Tuned weights and the learned table lower the ratio to the lower bound by 0.02 to 0.04
on lattices and programs, compared with the smoothed bound that they start from, and
gain nothing on trees (`experiments/policy_parts.py`, docs/results-policies.md).
"""
