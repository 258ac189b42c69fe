"""Tell derivative endpoints that give what JAX makes of a function from those that their author thought of.

    def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)

gives JAX's derivative of `apply_jit`, and so does any function that only hands its arguments on to recipes,
to `jax.jvp` and its kin, and to other such functions of its file. This is read from the syntax; where more is
called or computed (a scaled cotangent, another function), the derivative is the author's own.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from chainrule.runtime._component._capabilities import DERIVATIVE_ENDPOINTS

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
