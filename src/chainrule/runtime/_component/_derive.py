"""Fill in the derivative endpoints that an author left out.

    Jacobian    from JVP or VJP, whichever needs fewer calls for this request
    JVP, VJP    from the Jacobian, native or derived
    HVP         from the VJP by differencing, where the settings ask for it
    value and VJP       from `apply` and the VJP

What a framework gives for free (JAX, torch, finite differences when asked for) is already among the
implementations when this runs, marked as derived by its maker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel

from chainrule._errors import DefinitionError
from chainrule._trees import get_at_path
from chainrule.runtime._component._capabilities import Cost, Implementation, derived
from chainrule.runtime._component._schemas import Schemas
from chainrule.runtime._derivatives import (
    hvp_from_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    value_and_vjp,
    vjp_from_jacobian,
)
from chainrule.runtime._derivatives._kinds import (
    DERIVATIVES,
    HVP,
    JACOBIAN,
    JVP,
    VALUE_AND_VJP,
    VJP,
    DerivativeKind,
)
from chainrule.runtime._own_arrays import own_copy
from chainrule.runtime._progress import unheard

_PRODUCTS: dict[DerivativeKind, Callable[..., Any]] = {
    JVP: jvp_from_jacobian,
    VJP: vjp_from_jacobian,
}


def with_derivatives(
    given: Mapping[str, Implementation], schemas: Schemas, *, derive_hvp: bool = False
) -> dict[str, Implementation]:
    """What was given, and the derivative endpoints that follow from it.

    Args:
        given: the implementations so far.
        schemas: of the component.
        derive_hvp: take second derivatives by differencing the VJP where there are none.

    Raises:
        DefinitionError: a derivative is defined although nothing is differentiable
            (`nothing_differentiable`).
    """
    found = dict(given)
    if _is_differentiable(schemas):
        _complete_first_order(found)
        _complete_from_vjp(found, derive_hvp)
    else:
        _refuse_derivatives(found)
    return found


def _is_differentiable(schemas: Schemas) -> bool:
    return all(schemas.differentiable[side] for side in ("inputs", "outputs"))


def _refuse_derivatives(found: dict[str, Implementation]) -> None:
    for kind in DERIVATIVES:
        implementation = found.pop(kind.endpoint, None)
        if implementation is not None and implementation.capability.status == "native":
            raise DefinitionError(
                f"The component defines {kind.endpoint}, but its schemas mark no input or no output "
                "as differentiable. Write Differentiable[Array[…]] for the arrays it is about, on "
                "both sides.",
                code="nothing_differentiable",
                details={"endpoint": kind.endpoint},
            )


def _complete_from_vjp(found: dict[str, Implementation], derive_hvp: bool) -> None:
    if VJP.endpoint not in found:
        return
    vjp = _positional(VJP, found[VJP.endpoint].function)
    cost = found[VJP.endpoint].capability.cost
    if derive_hvp and HVP.endpoint not in found:
        # Central differences, and one more VJP for the precision of its results.
        via = f"differences of {VJP.endpoint}"
        found[HVP.endpoint] = derived(partial(hvp_from_vjp, vjp), via, cost.times(3))
    if VALUE_AND_VJP.endpoint not in found:
        both = partial(value_and_vjp, found["apply"].function, vjp)
        via = f"apply and {VJP.endpoint}"
        found[VALUE_AND_VJP.endpoint] = derived(both, via, cost.times(1, plus=1))


def _complete_first_order(found: dict[str, Implementation]) -> None:
    if JACOBIAN.endpoint not in found:
        jacobian = _jacobian_from_products(found)
        if jacobian is not None:
            found[JACOBIAN.endpoint] = jacobian
    if JACOBIAN.endpoint in found:
        jacobian_fn = _positional(JACOBIAN, found[JACOBIAN.endpoint].function)
        cost = found[JACOBIAN.endpoint].capability.cost
        for kind, product in _PRODUCTS.items():
            if kind.endpoint not in found:
                product_fn = partial(product, jacobian_fn)
                found[kind.endpoint] = derived(product_fn, JACOBIAN.endpoint, cost)


def _jacobian_from_products(found: Mapping[str, Implementation]) -> Implementation | None:
    jvp, vjp = (
        _positional(kind, found[kind.endpoint].function) if kind.endpoint in found else None
        for kind in (JVP, VJP)
    )
    apply = found["apply"].function
    if jvp is not None and vjp is not None:
        cheaper = partial(_cheaper_jacobian, jvp, vjp, apply)
        return derived(cheaper, "jvp or vjp", Cost(1, fewer=1))
    if jvp is not None:
        return derived(partial(jacobian_from_jvp, jvp), JVP.endpoint, Cost(0, inputs=1))
    if vjp is not None:
        return derived(partial(jacobian_from_vjp, vjp, apply), VJP.endpoint, Cost(1, outputs=1))
    return None


def _cheaper_jacobian(
    jvp: Callable[..., Any],
    vjp: Callable[..., Any],
    apply: Callable[[Any], Any],
    inputs: BaseModel,
    jac_inputs: set[str],
    jac_outputs: set[str],
) -> Any:
    """One JVP per input element, or one VJP per output element: whichever is less."""
    with unheard():
        outputs = apply(own_copy(inputs))
    if _count(inputs, jac_inputs) <= _count(outputs, jac_outputs):
        return jacobian_from_jvp(jvp, inputs, jac_inputs, jac_outputs)
    return jacobian_from_vjp(vjp, lambda _: outputs, inputs, jac_inputs, jac_outputs)


def _count(tree: Any, paths: set[str]) -> int:
    return sum(math.prod(np.shape(get_at_path(tree, path))) for path in paths)


def _positional(kind: DerivativeKind, function: Callable[..., Any]) -> Callable[..., Any]:
    """Authors' functions are called by name, the derivation helpers call by position."""

    def call(*arguments: Any) -> Any:
        return function(**dict(zip(kind.argument_names, arguments, strict=True)))

    return call
