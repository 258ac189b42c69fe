"""Components as functions of CasADi: `function` makes one, with exact derivatives of first and second order.

The only module is `_function`.
"""

from chainrule.casadi._function import ComponentFunction, function

__all__ = ["ComponentFunction", "function"]
