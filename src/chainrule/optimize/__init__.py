"""Optimise through programs: components and JAX functions of nested data as problems for the usual solvers.

    minimize         the smallest value of a function, within bounds and constraints
    least_squares    the parameters whose residuals are smallest
    fixed_point      several components solved together, with gradients of the solution
    Result, Step     what comes out, and how it was reached
    Equilibrium      a fixed point, and how it was reached

No optimiser is written here: scipy, Ipopt, NLopt and optimistix do the work.
Nested variables become one vector (leaves in schema order, names shown in messages), bounds come from the
schema, functions are compiled once and evaluated once per point, and what a solver would accept in silence
(not-a-numbers, wrong sizes, bounds that it ignores) is refused.

Modules, in reading order:

    _variables     nested variables as one vector, with names and bounds
    _evaluation    one evaluation per point: checks, history, progress, checkpoints
    _solvers       the solvers, each as a function of an evaluation
    _ipopt         Ipopt, by way of CasADi
    _minimize      `minimize` and `least_squares`; objectives, constraints and residuals as functions
    _fixed_point   coupled components
"""

from chainrule.optimize._evaluation import Step
from chainrule.optimize._fixed_point import Equilibrium, fixed_point
from chainrule.optimize._minimize import Result, least_squares, minimize

__all__ = [
    "Equilibrium",
    "Result",
    "Step",
    "fixed_point",
    "least_squares",
    "minimize",
]
