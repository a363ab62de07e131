"""Keeps lowered programs between processes, so that later processes do not trace them.

In a second process, the fine program of the first gradient is ready 1.1 s earlier for
trees, and 2.7 s earlier for a network of 17 types (`experiments/first_gradient.py`,
docs/results.md).
"""
