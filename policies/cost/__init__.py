"""Costs of batches: a model of measured times, and its file."""
