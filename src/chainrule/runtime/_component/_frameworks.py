"""What a framework gives for free: derivative endpoints and abstract evaluation.

The recipes live in `chainrule.runtime.jax_recipes` and `torch_recipes`; they are imported when a component
of that framework is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from chainrule._errors import DefinitionError
from chainrule.runtime._component._author import is_jitted
from chainrule.runtime._component._capabilities import Implementation, derived
from chainrule.runtime._component._plain import to_plain
from chainrule.runtime._component._signature import Signature
from chainrule.runtime._derivatives._kinds import HVP, JACOBIAN, JVP, VALUE_AND_VJP, VJP

_RECIPES = {
    JACOBIAN.endpoint: "jacobian",
    JVP.endpoint: "jvp",
    VJP.endpoint: "vjp",
    HVP.endpoint: "hessian_vector_product",
    VALUE_AND_VJP.endpoint: "value_and_vjp",
    "abstract_eval": "abstract_eval",
}
# Values are tagged with `sow`, which is of JAX.
_RECIPES_OF = {
    "jax": {**_RECIPES, "tagged_intermediates": "tagged_intermediates"},
    "torch": _RECIPES,
}

Framework = Literal["jax", "torch", "numpy"]


class Free(NamedTuple):
    """`apply` in a framework, the endpoints that come with it, and the traceable function of JAX."""

    apply: Callable[[Any], Any]
    endpoints: dict[str, Implementation]
    jax_function: Callable[[Any], Any] | None


def guess_framework(function: Callable[..., Any]) -> Framework:
    """JAX for a jitted function, NumPy for any other."""
    return "jax" if is_jitted(function) else "numpy"


def framework_implementations(framework: Framework, signature: Signature) -> Free:
    """How a function runs in its framework, and what follows.

    Raises:
        DefinitionError: an unknown framework (`unknown_framework`), or one that is not installed
            (`framework_missing`).
    """
    if framework == "numpy":
        return Free(signature.call_model, {}, None)
    if framework not in ("jax", "torch"):
        raise DefinitionError(
            f"Unknown framework {framework!r}; use 'jax', 'torch' or 'numpy'.",
            code="unknown_framework",
        )

    def tree_function(tree: Any) -> Any:
        return _as_tree(signature.call_tree(tree))

    recipes = _recipes(framework)
    program = _jitted(tree_function) if framework == "jax" else tree_function
    apply = partial(getattr(recipes, f"{framework}_apply"), program)
    traceable = tree_function if framework == "jax" else None
    return Free(apply, recipe_implementations(framework, program), traceable)


def recipe_implementations(
    framework: Framework, program: Callable[[Any], Any]
) -> dict[str, Implementation]:
    """Derivatives and abstract evaluation of a program from nested dicts to nested dicts."""
    recipes = _recipes(framework)
    return {
        endpoint: derived(partial(getattr(recipes, f"{framework}_{recipe}"), program), framework)
        for endpoint, recipe in _RECIPES_OF[framework].items()
    }


def _jitted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function compiled once per structure and non-array leaves, for any tree of inputs."""
    import jax

    from chainrule.runtime.jax_recipes._boundary import seal, split, unseal

    @partial(jax.jit, static_argnums=0)
    def run(frame: Any, arrays: Any) -> Any:
        return seal(function(frame.join(arrays)))

    def call(tree: Any) -> Any:
        return unseal(run(*split(tree)))

    return call


def _recipes(framework: str) -> Any:
    try:
        return importlib.import_module(f"chainrule.runtime.{framework}_recipes")
    except ModuleNotFoundError as error:
        raise DefinitionError(
            f"framework={framework!r} needs the package {error.name!r}: "
            f"pip install 'chainrule[{framework}]'.",
            code="framework_missing",
        ) from error


def _as_tree(outputs: Any) -> Any:
    return to_plain(outputs) if isinstance(outputs, BaseModel) else outputs
