"""Recording: from a model and an instance to a dataflow graph of arrays.

Recording is compiled and takes 0.20 to 0.29 µs per node in addition to the model's own
Python; in pure Python it takes 1.5 µs (`experiments/recording_speed.py`,
docs/recording.md).
"""

from edbatch.graph.cell import Cell
from edbatch.graph.cell_decorator import cell
from edbatch.graph.dataflow_graph import MISSING, DataflowGraph
from edbatch.graph.handle import Handle
from edbatch.graph.merge import merge
from edbatch.graph.node_keys import cell_keys
from edbatch.graph.node_type import Aval, CallTemplate, NodeType, TypeKey
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.recorder import Recorder, record
from edbatch.graph.recording_bases import recording_is_compiled
from edbatch.graph.structure import GraphStructure
from edbatch.graph.type_table import TypeTable
from edbatch.graph.value import value

__all__ = [
    "MISSING",
    "Aval",
    "CallTemplate",
    "Cell",
    "DataflowGraph",
    "GraphStructure",
    "Handle",
    "NodeType",
    "ParameterPath",
    "Recorder",
    "TypeKey",
    "TypeTable",
    "cell",
    "cell_keys",
    "merge",
    "record",
    "recording_is_compiled",
    "value",
]
