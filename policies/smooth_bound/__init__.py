"""The smoothed lower bound, a p-norm over the longest chains of each type.

Running the type that lowers it most, with nothing trained, takes word lattices from
1.40 times the lower bound, which greedy has, to 1.27; training adds 0.04
(`experiments/policy_parts.py`, docs/results-policies.md).
"""
