"""Gradients: the executor's loops, backwards.

Value and gradient of 64 trees at hidden 128 and 256 take one core 1.6 and 1.4 times
as long as all products at its fastest (`experiments/gradient_profile.py`,
docs/results.md).
"""
