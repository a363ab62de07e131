"""Finite state machines: how they see a frontier, and how they are trained."""
