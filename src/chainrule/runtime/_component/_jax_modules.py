"""What JAX can do with a component file is read from the syntax of its functions.

`function_behind_apply` finds the traceable function of a file that follows the JAX recipe. Such a file has a
jitted function of the dumped inputs and an `apply` that does nothing but call it:

    def apply(inputs):
        return apply_jit(inputs.model_dump())         or   out = jax_apply(apply_jit, inputs)
                                                           return OutputSchema(**out)

Only then is the jitted function the same thing as the component, and may be traced in its place. With
anything else in the body of `apply` the answer is no.

`own_derivatives` separates derivative endpoints that give what JAX makes of that function from those that the
author derived in another way:

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)

gives JAX's derivative of `apply_jit`, and so does any function that only hands its arguments on to recipes,
to `jax.jvp` and related functions, and to other such functions of its file. Where more is called or
computed (a scaled cotangent, another function), the derivative is the author's own.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from chainrule._endpoints import DERIVATIVE_ENDPOINTS
from chainrule.runtime._component._definition import is_jitted


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


_TRANSFORMATIONS = {"jacfwd", "jacobian", "jacrev", "jit", "jvp", "linearize", "vjp"}
_HELPERS = ("jax_recipes", "_trees", "tree_transforms")
_CONTAINERS = {"dict", "frozenset", "list", "set", "sorted", "tuple"}
_HANDING_ON = (
    ast.Assign, ast.Attribute, ast.Call, ast.Constant, ast.Expr, ast.keyword, ast.List, ast.Load, ast.Name,
    ast.Return, ast.Starred, ast.Store, ast.Subscript, ast.Tuple,
)  # fmt: skip


def own_derivatives(module: Any, function: Callable[[Any], Any]) -> list[str]:
    """The derivative endpoints of a module that may give something else than JAX's of a function."""
    defined = [name for name in DERIVATIVE_ENDPOINTS if hasattr(module, name)]
    names = vars(module)
    return [name for name in defined if not _hands_on(getattr(module, name), names, function)]


def _hands_on(candidate: Any, names: dict[str, Any], function: Any) -> bool:
    """Whether a function of the file does nothing but hand on to what is known."""
    definition = _definition_of(candidate)
    if definition is None:
        return False
    body = [node for statement in definition.body for node in ast.walk(statement)]
    local = {argument.arg for argument in definition.args.args}
    local |= {node.id for node in body if isinstance(node, ast.Name) and _is_stored(node)}
    used = {node.id for node in body if isinstance(node, ast.Name)} - local
    return (
        all(isinstance(node, _HANDING_ON) for node in body)
        and all(_is_place(node) for node in body if isinstance(node, ast.Subscript))
        and all(
            _is_known_attribute(node, names) for node in body if isinstance(node, ast.Attribute)
        )
        and all(_is_known(name, names, function) for name in used)
    )


def _definition_of(function: Any) -> ast.FunctionDef | None:
    try:
        source = inspect.getsource(inspect.unwrap(function))
        (definition,) = ast.parse(textwrap.dedent(source)).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return definition if isinstance(definition, ast.FunctionDef) else None


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_place(node: ast.Subscript) -> bool:
    """`jax.jvp(…)[1]`, but not an output by name."""
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)


def _is_known_attribute(node: ast.Attribute, names: dict[str, Any]) -> bool:
    """`inputs.model_dump`, and `jax.vjp`, but not a field of the inputs."""
    if isinstance(node.value, ast.Name) and isinstance(names.get(node.value.id), ModuleType):
        return _is_helper(getattr(names[node.value.id], node.attr, None))
    return node.attr == "model_dump"


def _is_known(name: str, names: dict[str, Any], function: Any) -> bool:
    value = names.get(name)
    if name not in names:
        return name in _CONTAINERS and hasattr(builtins, name)
    if value is function or isinstance(value, ModuleType) or _is_helper(value):
        return True
    others = {other: each for other, each in names.items() if other != name}
    return _hands_on(value, others, function)


def _is_helper(value: Any) -> bool:
    """Whether this is one of JAX's transformations, a recipe, or a helper for trees."""
    origin = (getattr(value, "__module__", None) or "").split(".")
    if origin[0] == "jax":
        return getattr(value, "__name__", None) in _TRANSFORMATIONS
    return any(part in origin for part in _HELPERS)
