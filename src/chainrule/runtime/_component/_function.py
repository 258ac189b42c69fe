"""`@component`: a function with annotated arguments becomes a component."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, overload

from chainrule.runtime._component._capabilities import Implementation
from chainrule.runtime._component._definition import Batching, Definition
from chainrule.runtime._component._finite import Derivatives, finite_implementations
from chainrule.runtime._component._frameworks import (
    Framework,
    framework_implementations,
    guess_framework,
)
from chainrule.runtime._component._hashing import hash_function
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._component._signature import read_signature, summary
from chainrule.runtime._config import ComponentConfig

Config = ComponentConfig | Mapping[str, Any] | None


@overload
def component(function: Callable[..., Any], /, *, config: Config = None) -> LocalComponent: ...
@overload
def component(
    *,
    framework: Framework | None = None,
    derivatives: Derivatives = None,
    batching: Batching | None = None,
    merge_up_to: int = 0,
    name: str | None = None,
    version: str = "unknown",
    config: Config = None,
) -> Callable[[Callable[..., Any]], LocalComponent]: ...
def component(
    function: Callable[..., Any] | None = None,
    /,
    *,
    framework: Framework | None = None,
    derivatives: Derivatives = None,
    batching: Batching | None = None,
    merge_up_to: int = 0,
    name: str | None = None,
    version: str = "unknown",
    config: Config = None,
) -> LocalComponent | Callable[[Callable[..., Any]], LocalComponent]:
    """Make a component of a function: schemas from its annotations, prose from its docstring.

    Args:
        function: a function whose arguments and return value are annotated.
        framework: `"jax"` and `"torch"` give every derivative endpoint and abstract evaluation for
            free; `"numpy"` none. Without it, a jitted function counts as JAX, any other as NumPy.
        derivatives: `"finite"` to differentiate a black box numerically, or a dictionary of options of
            `finite_difference_jacobian`, where `eps` is `"auto"` unless given. Inputs and outputs to
            differentiate are marked `Differentiable`.
        batching: how the function treats extra leading axes, see `Definition`.
        merge_up_to: how many concurrent single calls a server may merge into one, if it batches.
        name: of the component; the function's name by default.
        version: of the component.
        config: settings of this component.

    Returns:
        The component; calling it calls the function as it was written.

    Raises:
        DefinitionError: the annotations do not describe a component, an option of `derivatives` does not
            exist or has a value that cannot be used, or nothing is marked `Differentiable`.

    Example:
        >>> from chainrule.runtime import Array, Differentiable, Float64, component
        >>> @component(derivatives="finite")
        ... def square(x: Differentiable[Array[(2,), Float64]]) -> Differentiable[Array[(2,), Float64]]:
        ...     return x**2
        >>> square.apply({"x": [1.0, 3.0]})
        {'result': array([1., 9.])}
    """

    def make(function: Callable[..., Any]) -> LocalComponent:
        signature = read_signature(function)
        chosen = framework or guess_framework(function)
        apply, free, jax_function = framework_implementations(chosen, signature)
        implementations = {"apply": Implementation(apply), **free}
        if derivatives is not None:
            implementations |= finite_implementations(
                apply, derivatives, signature.input_schema, signature.output_schema
            )
        definition = Definition(
            name=name or function.__name__,
            version=version,
            description=summary(inspect.getdoc(function) or ""),
            input_schema=signature.input_schema,
            output_schema=signature.output_schema,
            implementations=implementations,
            function=function,
            content_hash=hash_function(inspect.unwrap(function)),
            jax_function=jax_function,
            jax_derivatives=derivatives is None,
            batching=batching,
            merge_up_to=merge_up_to,
        )
        return LocalComponent(definition, config)

    return make if function is None else make(function)
