"""Lowered programs, kept between processes: a second one traces none of them.

Its fine program of the first gradient is there 1.1 s earlier for trees, and 2.7 s for a
network of 17 types (`experiments/first_gradient.py`, docs/results.md).
"""
