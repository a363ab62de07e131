"""Gradients: the executor's loops, backwards.

Value and gradient of 64 trees reach 42 to 48% of the fastest that one core could do all
products in (`experiments/gradient_profile.py`, docs/results.md).
"""
