"""Scheduling policies, their training and their file format."""
