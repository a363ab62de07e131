"""Gradients: the executor's loops, backwards."""
