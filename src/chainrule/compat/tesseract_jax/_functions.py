"""`apply_tesseract`, `sow` and `save_intermediates` with exactly the ancestor's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax

from chainrule import harvest
from chainrule._errors import CapabilityError, InputError
from chainrule._paths import join_path
from chainrule._trees import get_at_path, iterate_leaves
from chainrule.bridge import apply_component
from chainrule.bridge.internal import as_target
from chainrule.compat.tesseract_core import Tesseract
from chainrule.compat.tesseract_core._failures import as_validation_error

VmapMethod = Literal["sequential", "auto_experimental", "expand_dims", "broadcast_all"]
T = TypeVar("T")

# A `Tesseract` may be an argument of a jitted function: it is part of the program, not of the data.
jax.tree_util.register_static(Tesseract)


def apply_tesseract(
    tesseract_client: Any,
    inputs: Any,
    *,
    vmap_method: VmapMethod | None = None,
    materialize_jacobian: bool | None = None,
) -> Any:
    """Call a component under any JAX transformation.

    Args:
        tesseract_client: a `Tesseract` of this package or of the installed `tesseract_core`, or any handle
            of Chainrule.
        inputs: the inputs as nested data.
        vmap_method: how `vmap` is done. `None`, an error in the ancestor, leaves the choice to Chainrule.
        materialize_jacobian: whether a batch of derivative products is answered by one Jacobian.

    Returns:
        The outputs as a tree of JAX arrays.

    Raises:
        pydantic.ValidationError: the component refuses the inputs.
        TypeError: something else than an array is given for an array.
        ValueError: a derivative by an input is asked for that is not differentiable; or the component has no
            `abstract_eval` and is called under a transformation.
    """
    is_ours = isinstance(tesseract_client, Tesseract)
    client = tesseract_client.component if is_ours else tesseract_client
    _refuse_lists(client, inputs)
    try:
        return apply_component(
            client,
            inputs,
            derive=not is_ours or tesseract_client.derives,
            vmap_method=vmap_method or "auto",
            materialize_jacobian=materialize_jacobian,
        )
    except CapabilityError as error:
        if error.code == "no_abstract_eval":
            raise ValueError(error.message) from error
        raise
    except InputError as error:
        if error.code in ("invalid_option", "input_not_differentiable"):
            raise
        if error.code == "not_an_array" or _is_missing_array(error):
            raise TypeError(error.message) from error
        # The ancestor asks for shapes first, so that is the endpoint that refuses.
        raise as_validation_error(error, "abstract_eval", {"inputs": inputs}) from error


def _refuse_lists(client: Any, inputs: Any) -> None:
    """Refuse lists and text in the place of arrays, in the ancestor's words; natively lists are taken."""
    target = as_target(client)
    for segments, _ in iterate_leaves(inputs):
        for end in range(1, len(segments) + 1):
            path = join_path(*segments[:end])
            value = get_at_path(inputs, path) if target.is_array_input(path) else None
            if isinstance(value, (list, tuple, str)):
                raise TypeError(
                    f"Input '{path}' expects an array, but got {type(value).__name__}. Pass "
                    "`jnp.asarray(…)` of it."
                )


def _is_missing_array(error: InputError) -> bool:
    """Whether nothing but `None` was given for arrays."""
    problems = error.details.get("problems") or ()
    return bool(problems) and all(problem["type"] == "array_non_numeric" for problem in problems)


def sow(value: T, name: str, *, tag: str = "intermediates") -> T:
    """Mark a value, a pytree, under a name; the identity."""
    return harvest.sow(value, name, tag=tag)


def save_intermediates(
    fn: Callable[..., Any], *, tag: str = "intermediates"
) -> Callable[..., tuple[Any, dict[str, dict[str, Any]]]]:
    """A function that returns `(result, {name: {"primal": …, "cotangent": …}})`.

    Args:
        fn: any function that JAX can trace; `jax.grad(f)` for cotangents.
        tag: only values marked with this tag are returned.
    """
    return harvest.save_intermediates(fn, tag=tag)
