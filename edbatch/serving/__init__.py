"""Serving with continuous batching: each request joins at the next wave.

At hidden 128, a server answers 1.6 times as many trees per second as one that batches
requests in time windows and runs each window to its end, and 1.4 to 1.5 times as many
translations and parses (`experiments/load_test.py`, docs/results-serving.md).
"""

from edbatch.serving.server import Server
from edbatch.serving.slow_turns import SlowTurn
from edbatch.serving.stats import ServerStats

__all__ = ["Server", "ServerStats", "SlowTurn"]
