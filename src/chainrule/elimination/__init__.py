"""Cheap exact Jacobians: vertex elimination on the computational graph, in any order.

A function's jaxpr is a graph of local partials. Eliminating its vertices one by one, by the chain rule,
leaves the Jacobian; forward and reverse mode are two of the possible orders. Blocks keep their structure
(diagonals, stencils, selections, replications), so that what is zero or repeated is never computed.
"""

from chainrule.elimination._api import hessian, jacobian, linearization, value_and_jacobian
from chainrule.elimination._counting import OperationCounts
from chainrule.elimination._explain import Explanation, explain_jacobian
from chainrule.elimination._find_order import find_order
from chainrule.elimination._jacve import jacve, tree_allclose, vertex_elimination_jaxpr
from chainrule.elimination._linearize import Linearization
from chainrule.elimination._methods import Candidate
from chainrule.elimination._order import Order
from chainrule.elimination._orders import OrderError
from chainrule.elimination._result import StructuredJacobian
from chainrule.elimination._rules import register_partials

__all__ = [
    "Candidate",
    "Explanation",
    "Linearization",
    "OperationCounts",
    "Order",
    "OrderError",
    "StructuredJacobian",
    "explain_jacobian",
    "find_order",
    "hessian",
    "jacobian",
    "jacve",
    "linearization",
    "register_partials",
    "tree_allclose",
    "value_and_jacobian",
    "vertex_elimination_jaxpr",
]
