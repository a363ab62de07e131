"""Cost model of batches, fitted to measured times, and its file format.

Schedules chosen by predicted time take up to 4% less time than schedules chosen by the
number of batches, where the two differ (`experiments/cost_objective.py`,
docs/results-policies.md).
"""
