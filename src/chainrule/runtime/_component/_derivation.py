"""Fill in the derivative endpoints that an author left out.

    Jacobian    from JVP or VJP, whichever needs fewer calls for this request
    JVP, VJP    from the Jacobian, native or derived
    HVP         from the VJP by differencing, where the settings ask for it
    value and VJP       from `apply` and the VJP

What a framework gives for free (JAX, torch, finite differences when asked for) is already among the
implementations when this runs, marked as derived by its maker.

The option `derivatives` of a component asks for finite differences:

    derivatives="finite"                        central differences with an automatic step
    derivatives={"algorithm": "richardson"}     options of `finite_difference_jacobian`; the others keep
                                                the values that "finite" has

Names and values are checked when the component is declared.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from chainrule._describe import describe_value, did_you_mean
from chainrule._device import own_copy
from chainrule._endpoints import (
    DERIVATIVES,
    HVP,
    JACOBIAN,
    JVP,
    VALUE_AND_VJP,
    VJP,
    DerivativeKind,
)
from chainrule._errors import ComponentError, DefinitionError
from chainrule._paths import matches_pattern
from chainrule._progress import unheard
from chainrule._sparsity import is_block, read_blocks
from chainrule._trees import get_at_path
from chainrule.runtime._component._definition import Cost, Implementation, derived
from chainrule.runtime._component._schemas import Schemas
from chainrule.runtime._derivatives._derive import (
    hvp_from_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    value_and_vjp,
    vjp_from_jacobian,
)
from chainrule.runtime._derivatives._differences import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
)
from chainrule.runtime._derivatives._stencils import ALGORITHMS, find_stencil, is_eps
from chainrule.runtime._schema import differentiable_leaves

_PRODUCTS: dict[DerivativeKind, Callable[..., Any]] = {
    JVP: jvp_from_jacobian,
    VJP: vjp_from_jacobian,
}


def with_derivatives(
    given: Mapping[str, Implementation], schemas: Schemas, *, derive_hvp: bool = False
) -> dict[str, Implementation]:
    """What was given, and the derivative endpoints that follow from it.

    Raises:
        DefinitionError: a derivative is defined although nothing is differentiable
            (`nothing_differentiable`).
    """
    found = dict(given)
    if schemas.differentiable["inputs"] and schemas.differentiable["outputs"]:
        _complete_first_order(found)
        _complete_from_vjp(found, derive_hvp)
    else:
        _refuse_derivatives(found)
    return found


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
    """Authors' functions are called by name, the derivation helpers call by position.

    What they return is checked here, so that an error names the endpoint that the author wrote.
    """

    def call(*arguments: Any) -> Any:
        request = dict(zip(kind.argument_names, arguments, strict=True))
        result = function(**request)
        _check_answer(kind, request, result)
        return result

    return call


def _check_answer(kind: DerivativeKind, request: Mapping[str, Any], result: Any) -> None:
    if result is None:
        raise _bad_answer(kind, "None. Does its function end with `return`?")
    if not isinstance(result, Mapping):
        raise _bad_answer(kind, f"{describe_value(result)}, expected a dict keyed by path.")
    is_over_inputs = kind.result_over[0] == "inputs"
    expected = set(request[kind.inputs_argument if is_over_inputs else kind.outputs_argument])
    if missing := sorted(expected - result.keys()):
        extra = sorted(map(str, result.keys() - expected))
        raise _bad_answer(
            kind,
            f"other keys than it was asked for: missing {missing}, unexpected {extra or 'none'}.",
        )
    for path in expected if kind is VJP else ():
        shape = np.shape(get_at_path(request["inputs"], path))
        if np.shape(result[path]) != shape:
            raise _bad_answer(
                kind,
                f"a wrong array at [{path!r}]: expected the shape of the input, {shape}; found "
                f"{describe_value(result[path])}.",
            )


def _bad_answer(kind: DerivativeKind, found: str) -> ComponentError:
    return ComponentError(f"{kind.endpoint} returned {found}", code="bad_output")


Derivatives = Literal["finite"] | Mapping[str, Any] | None

_RECIPES: dict[DerivativeKind, Callable[..., Any]] = {
    JACOBIAN: finite_difference_jacobian,
    JVP: finite_difference_jvp,
    VJP: finite_difference_vjp,
}


def finite_implementations(
    apply: Callable[[Any], Any],
    derivatives: Any,
    input_schema: type[BaseModel],
    output_schema: type[BaseModel],
) -> dict[str, Implementation]:
    """The derivative endpoints by finite differences.

    Raises:
        DefinitionError: an option that does not exist or a value that cannot be used
            (`bad_derivatives`), or schemas without a differentiable input or output
            (`nothing_differentiable`).
    """
    options = _read_options(derivatives)
    _check_paths(options, input_schema, output_schema)
    functions = {kind: _with_options(recipe, apply, options) for kind, recipe in _RECIPES.items()}
    nodes = len(find_stencil(options.get("algorithm", "central")).nodes)
    # One evaluation more than the nodes: an automatic step looks at the outputs first.
    costs = {JACOBIAN: Cost(1, inputs=nodes), JVP: Cost(1 + nodes), VJP: Cost(1, inputs=nodes)}
    if options.get("algorithm") != "stochastic":  # differences of two estimates estimate nothing
        # The VJP has the noise of its own differences, which a higher order divides by a longer step.
        functions[HVP] = partial(hvp_from_vjp, functions[VJP], algorithm="richardson")
        costs[HVP] = costs[VJP].times(1 + len(find_stencil("richardson").nodes))
    return {
        kind.endpoint: derived(function, "finite differences", costs[kind])
        for kind, function in functions.items()
    }


def sparsity_of(derivatives: Derivatives) -> Mapping[str, Mapping[str, Any]]:
    """The pattern among the options of finite differences, if it names its paths."""
    given = derivatives.get("sparsity") if isinstance(derivatives, Mapping) else None
    return given if isinstance(given, Mapping) and not is_block(given) else {}


def _with_options(
    recipe: Callable[..., Any], apply: Callable[[Any], Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """A recipe with those of the options that it has: a product along one tangent takes no samples."""
    known = inspect.signature(recipe).parameters
    chosen = {name: value for name, value in options.items() if name in known}
    eps = chosen["eps"]
    if not isinstance(eps, Mapping):
        return partial(recipe, apply, **chosen)
    inputs_argument = next(name for name in known if name.endswith("_inputs"))

    def call(**arguments: Any) -> Any:
        # The recipe takes one step per path of the request, which need not be those with a step here.
        steps = {path: eps.get(path, "auto") for path in arguments[inputs_argument]}
        return recipe(apply, **arguments, **{**chosen, "eps": steps})

    return call


def _read_options(derivatives: Any) -> dict[str, Any]:
    if derivatives == "finite":
        return {"eps": "auto"}
    if not isinstance(derivatives, Mapping):
        meant = ""
        if isinstance(derivatives, str):
            is_algorithm = derivatives in ALGORITHMS
            option = f'{{"algorithm": "{derivatives}"}}' if is_algorithm else '"finite"'
            meant = f" Write derivatives={option}."
        raise _bad(
            'expected "finite" or a dictionary of options such as {"algorithm": "richardson"}; found '
            f"{_shown(derivatives)}.{meant}"
        )
    for name, value in derivatives.items():
        if name not in _OPTIONS:
            raise _bad(
                f"there is no option {name!r}; there are {', '.join(_OPTIONS)}.{did_you_mean(name, _OPTIONS)}"
            )
        fits, expected = _OPTIONS[name]
        if not fits(value):
            hint = did_you_mean(value, ALGORITHMS) if name == "algorithm" else ""
            raise _bad(f"the option {name!r} is {expected}; found {_shown(value)}.{hint}")
    return {"eps": "auto", **derivatives}


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float)) else describe_value(value)


def _is_sparsity(value: Any) -> bool:
    if value is None or (isinstance(value, str) and value == "detect"):
        return True
    try:
        read_blocks({"": {"": value}} if is_block(value) else value)
    except ValueError:
        return False
    return True


_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "algorithm": (lambda value: value in ALGORITHMS, f"one of {', '.join(ALGORITHMS)}"),
    "eps": (is_eps, 'a positive number, a dictionary of one per input path, or "auto"'),
    "num_samples": (
        lambda value: value is None or (isinstance(value, int) and value >= 1),
        "an integer of 1 or more",
    ),
    "seed": (lambda value: value is None or isinstance(value, int), "an integer or None"),
    "sparsity": (_is_sparsity, '"detect" or a pattern, as `@component(sparsity=...)` takes it'),
    "executor": (
        lambda value: value is None or hasattr(value, "submit"),
        "an executor, with a method submit",
    ),
    "show_progress": (lambda value: isinstance(value, bool), "True or False"),
}
"""Option → whether a value can be used, and what it has to be."""


def _check_paths(
    options: Mapping[str, Any], input_schema: type[BaseModel], output_schema: type[BaseModel]
) -> None:
    inputs = differentiable_leaves(input_schema)
    for side, leaves in (("input", inputs), ("output", differentiable_leaves(output_schema))):
        if not leaves:
            raise DefinitionError(
                f"derivatives= differentiates arrays that are marked Differentiable, and no {side} of "
                f"this component is. Mark it on both sides: `x: Differentiable[Float64]` instead of "
                "`x: float`, `Differentiable[Array[(3,), Float64]]` for an array ("
                "`differentiable float64[3]` in a command file).",
                code="nothing_differentiable",
            )
    for path in options["eps"] if isinstance(options["eps"], Mapping) else ():
        if not any(matches_pattern(path, pattern) for pattern in inputs):
            raise _bad(f"eps names {path!r}; the differentiable inputs are {', '.join(inputs)}.")


def _bad(message: str) -> DefinitionError:
    return DefinitionError(f"derivatives: {message}", code="bad_derivatives")
