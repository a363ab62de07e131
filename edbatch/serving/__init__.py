"""Serving: requests that come when they come, run together in waves."""

from edbatch.serving.server import Server
from edbatch.serving.slow_turns import SlowTurn
from edbatch.serving.stats import ServerStats

__all__ = ["Server", "ServerStats", "SlowTurn"]
