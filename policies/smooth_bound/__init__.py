"""The smoothed lower bound, a p-norm over the longest chains of each type.

On word lattices, always running the type that lowers it most, without training, gives
1.27 times as many batches as the lower bound; greedy gives 1.40. Training gains another
0.04 (`experiments/policy_parts.py`, docs/results-policies.md).
"""
