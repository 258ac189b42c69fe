"""Cheap exact Jacobians: vertex elimination on the computational graph, in any order.

A function's jaxpr is a graph of local partials. Eliminating its vertices one by one, by the chain rule,
leaves the Jacobian; forward and reverse mode are two of the possible orders. Blocks keep their structure
(diagonals, stencils, selections, replications), so that what is zero or repeated is never computed.

Modules, in reading order:

    _structure    the static shape of a Jacobian block: axes, terms, structures
    _arithmetic   products and sums of terms, planned on structures
    _blocks       blocks with numbers: the plans carried out, and paths that a selection cuts
    _rules        local partials: one rule per primitive
    _cuts         minimal cuts of graphs, for bounds and plans
    _flatten      from a user's function to a flat program
    _graph        the computational graph of a flat program
    _eliminate    vertex elimination, and the blocks it leaves
    _result       `StructuredJacobian`: a block as users see it
    _linearize    a function traced at a point; `Linearization`
    _counting     multiplications and additions, by the convention of the literature
    _work         how much work a program is, and what that costs by backend
    _search       searching for a cheap order, on the bare graph
    _objectives   a graph as a search problem, priced by an objective
    _orders       `Order`, the classical orders, finding one, the check of a given one
    _sweeps       JAX's own sweeps, whole and compressed
    _native       an eliminated program as one kernel, by LLVM or Pallas
    _planning     the cheapest products of the components of a pipeline, and asking them
    _methods      the planner: what each way is expected to take, and running one
    _explain      the ways of computing a Jacobian as a table
    _api          the public transformations
    examples      the benchmark functions of the literature
    internal      what other packages of this project use
"""

from chainrule.elimination._api import (
    gauss_newton_product,
    hessian,
    jacobian,
    jacve,
    linearization,
    value_and_jacobian,
)
from chainrule.elimination._counting import OperationCounts
from chainrule.elimination._explain import Explanation, explain_jacobian
from chainrule.elimination._linearize import Linearization
from chainrule.elimination._methods import Candidate
from chainrule.elimination._orders import Order, OrderError, find_order
from chainrule.elimination._planning import Plan, PlannedRequest, plan_jacobian
from chainrule.elimination._result import StructuredJacobian
from chainrule.elimination._rules import register_partials

__all__ = [
    "Candidate",
    "Explanation",
    "Linearization",
    "OperationCounts",
    "Order",
    "OrderError",
    "Plan",
    "PlannedRequest",
    "StructuredJacobian",
    "explain_jacobian",
    "find_order",
    "gauss_newton_product",
    "hessian",
    "jacobian",
    "jacve",
    "linearization",
    "plan_jacobian",
    "register_partials",
    "value_and_jacobian",
]
