"""Gradients: the executor's loops, backwards.

On one core, value and gradient of 64 trees at hidden size 128 and 256 take 1.6 and 1.4
times as long as all their products at the core's peak speed
(`experiments/gradient_profile.py`, docs/results.md).
"""
