"""What other packages of this project use of `elimination`; no promise to users.

STRUCTURES          the algebra in which an edge is the structure of its block
Edges               result → operand → what an edge carries
Elimination         a graph in the middle of being eliminated
Graph               a program with the partials of its equations
OrderLike           what users may say about an order
OrderStep           a vertex, or the edge between a vertex and another vertex or input
choose_order        from what a user says about the order to its steps
count_operations    what an elimination costs, by the convention of the literature
program_work        scalar operations of one evaluation of a program
trace_function      a function traced with respect to some arguments, with its graph
work_of_program     the same by kind: arithmetic, transcendental functions, contractions, calls
"""

from chainrule.elimination._counting import count_operations
from chainrule.elimination._eliminate import STRUCTURES, Elimination
from chainrule.elimination._graph import Edges, Graph
from chainrule.elimination._linearize import trace_function
from chainrule.elimination._orders import OrderLike, choose_order
from chainrule.elimination._search import OrderStep
from chainrule.elimination._work import program_work, work_of_program

__all__ = [
    "STRUCTURES",
    "Edges",
    "Elimination",
    "Graph",
    "OrderLike",
    "OrderStep",
    "choose_order",
    "count_operations",
    "program_work",
    "trace_function",
    "work_of_program",
]
