"""What other packages of this project use of `elimination`; no promise to users."""

from chainrule.elimination._counting import OperationCounts, count_operations
from chainrule.elimination._eliminate import STRUCTURES, Elimination, Step
from chainrule.elimination._find_order import OrderLike, choose_order
from chainrule.elimination._graph import Edges, Graph
from chainrule.elimination._linearize import trace_function
from chainrule.elimination._work import program_work

__all__ = [
    "STRUCTURES",
    "Edges",
    "Elimination",
    "Graph",
    "OperationCounts",
    "OrderLike",
    "Step",
    "choose_order",
    "count_operations",
    "program_work",
    "trace_function",
]
