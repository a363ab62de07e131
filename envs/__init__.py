"""Scheduling of dataflow graphs as a gymnasium environment."""
