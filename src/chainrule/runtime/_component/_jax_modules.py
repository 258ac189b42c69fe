"""Find the traceable function of a component file that follows the JAX recipe.

Such a file has a jitted function of the dumped inputs and an `apply` that does nothing but call it:

    def apply(inputs):
        return apply_jit(inputs.model_dump())         or   out = jax_apply(apply_jit, inputs)
                                                           return OutputSchema(**out)

Only then is the jitted function the same thing as the component, and may be traced in its place. This is
read from the syntax of `apply`; anything else in its body and the answer is no.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from chainrule.runtime._component._author import is_jitted


def function_behind_apply(module: Any) -> Callable[[Any], Any] | None:
    """The jitted function that a module's `apply` stands for, or `None`."""
    try:
        source = textwrap.dedent(inspect.getsource(module.apply))
        (definition,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    name = _called_function(definition) if isinstance(definition, ast.FunctionDef) else None
    function = getattr(module, name, None) if name else None
    return function if is_jitted(function) else None


def _called_function(definition: ast.FunctionDef) -> str | None:
    arguments = [argument.arg for argument in definition.args.args]
    if len(arguments) != 1:
        return None
    statements = [s for s in definition.body if not _is_docstring(s)]
    returned = _returned_expression(statements)
    return None if returned is None else _jitted_name(_unwrapped(returned), arguments[0])


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _returned_expression(statements: list[ast.stmt]) -> ast.expr | None:
    """The value of `return value`, or of `out = value; return out` with `out` possibly wrapped."""
    if len(statements) == 1 and isinstance(statements[0], ast.Return):
        return statements[0].value
    if len(statements) != 2 or not isinstance(statements[1], ast.Return):
        return None
    match statements[0]:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            returned = statements[1].value
            inner = None if returned is None else _unwrapped(returned)
            return value if isinstance(inner, ast.Name) and inner.id == name else None
    return None


def _unwrapped(expression: ast.expr) -> ast.expr:
    """`value` from `OutputSchema(**value)` and `OutputSchema.model_validate(value)`."""
    match expression:
        case ast.Call(func=ast.Name(id="OutputSchema"), args=[], keywords=[ast.keyword(arg=None)]):
            return expression.keywords[0].value
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="OutputSchema"), attr="model_validate"),
            args=[value],
        ):
            return value
    return expression


def _jitted_name(expression: ast.expr, inputs: str) -> str | None:
    match expression:
        case ast.Call(
            func=ast.Name(id="jax_apply"),
            args=[ast.Name(id=name), ast.Name(id=argument)],
            keywords=[],
        ) if argument == inputs:
            return name
        case ast.Call(
            func=ast.Name(id=name),
            args=[
                ast.Call(
                    func=ast.Attribute(value=ast.Name(id=argument), attr="model_dump"),
                    args=[],
                    keywords=[],
                )
            ],
            keywords=[],
        ) if argument == inputs:
            return name
    return None
