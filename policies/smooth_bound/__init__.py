"""The smoothed lower bound, a p-norm over the longest chains of each type."""
