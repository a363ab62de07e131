"""Plots schedules, policies, their training and their comparison.

Each function returns a matplotlib ``Figure``, which a notebook shows (after
``%matplotlib inline``) and ``figure.savefig(path)`` writes. Matplotlib comes with
``pip install 'edbatch[plot]'`` and is imported when the first figure is made.

Example:
    >>> from edbatch.policies import Agenda, Greedy
    >>> from edbatch.schedule.examples import tree
    >>> graph = tree("((ab)cb)c")
    >>> schedules = [policy.schedule(graph) for policy in (Agenda(), Greedy())]
    >>> len(plot_schedules(schedules, graph).axes)
    2
"""

from edbatch.errors import MissingMatplotlibError, PlotError
from edbatch.plot.actions import plot_actions
from edbatch.plot.comparison import plot_comparison
from edbatch.plot.disagreements import plot_disagreements
from edbatch.plot.generalisation import plot_generalisation
from edbatch.plot.schedules import plot_schedules
from edbatch.plot.state_machine import plot_state_machine
from edbatch.plot.timeline import plot_timeline
from edbatch.plot.training import plot_training

__all__ = [
    "MissingMatplotlibError",
    "PlotError",
    "plot_actions",
    "plot_comparison",
    "plot_disagreements",
    "plot_generalisation",
    "plot_schedules",
    "plot_state_machine",
    "plot_timeline",
    "plot_training",
]
