"""`apply_component` and `from_callable`: the two public ways into JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._describe import names_its_arguments
from chainrule._errors import InputError
from chainrule._jaxpr import is_staging
from chainrule._trees import is_arraylike, map_with_paths
from chainrule.bridge._component_target import as_target
from chainrule.bridge._inline import NotTraceableError, call_inline
from chainrule.bridge._inputs import take_inputs_apart
from chainrule.bridge._primitive import (
    call_site,
    check_nans,
    hand_out,
    not_exportable,
    takes_device_memory,
)
from chainrule.bridge._site import find_site
from chainrule.bridge._tagged import open_target, sow_cotangents, sow_values
from chainrule.bridge._target import (
    Batching,
    CallableTarget,
    Effects,
    Options,
    Target,
    VmapMethod,
    positional_arguments,
)
from chainrule.bridge._types import (
    ArrayType,
    Skeleton,
    dtype_to_send,
    has_symbolic_size,
    take_apart,
    warn_if_narrowed,
)
from chainrule.harvest.internal import is_captured

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Leaves that can hold no traced value."""


def apply_component(
    component: Any,
    inputs: Any,
    *,
    vmap_method: VmapMethod | None = "auto",
    inline: bool | None = None,
    effects: Effects = "none",
    materialize_jacobian: bool | None = None,
    spot_check: bool = False,
    max_concurrency: int | None = None,
    infer_by_evaluation: bool = False,
    intermediates: bool | str = False,
    derive: bool = True,
) -> Any:
    """Call a component as if it were a `jax.numpy` function.

    Works under every JAX transformation. A component that is written in JAX and runs in this process
    becomes part of the caller's program (*inlined*); any other one is called on the host, and its
    derivative endpoints answer `grad`, `jvp` and the other transformations.

    Args:
        component: a component in this process, a handle of a served one, or a `tesseract_core.Tesseract`.
        inputs: its inputs as nested data. Arrays, NumPy arrays and tracers are operands; everything else is
            static and part of the program.
        vmap_method: how `vmap` is done. `"auto"`: natively if the component declares how it batches,
            else one call per example, concurrently where that is safe. `"sequential"`: one after the
            other. `"concurrent"`: never natively. `"expand_dims"`, `"broadcast_all"`: natively because
            *you* know that the component treats leading axes as batch axes. `"auto_experimental"`: the
            same as `"auto"`. `None`: `vmap` is an error.
        inline: whether JAX traces and differentiates a component written in JAX as if its function stood
            here, or its endpoints are asked, as those of any other (in a compiled program they are traced).
            `None`: it does, unless the author wrote a derivative by hand. `True` ignores such a derivative.
        effects: `"ordered"` for a component with side effects: calls happen in program order, exactly
            once each, and are not merged. One that is inlined has the effects that JAX sees in it.
        materialize_jacobian: whether a batch of derivative products is answered by one Jacobian. `None`:
            when it has an endpoint for it and the batch is at least as large as the Jacobian's smaller
            side.
        spot_check: compare the first example of every native batch with a call of its own, at the
            price of that call.
        max_concurrency: how many calls of one `vmap` run at the same time; by default as many as a server
            takes, and one at a time in this process.
        infer_by_evaluation: learn the outputs' shapes from one real evaluation (of ones) when the
            component has no `abstract_eval`.
        intermediates: under `save_intermediates`, also capture what the component tags inside; a text is the
            tag, `True` is the default one. A component that is inlined is captured anyway; one that is called
            on the host is asked for these values, in a call of its own each time, and to first order.
        derive: whether derivatives that the author did not write may be made of others, of JAX or of
            differences. If not, they are a `CapabilityError` when they are needed.

    Returns:
        The component's outputs as a tree of JAX arrays. Outputs that are not arrays come as they are
        outside of transformations, and as `abstract_eval` gives them inside.

    Raises:
        InputError: the inputs do not fit the component's schema, or a derivative was asked with respect to an
            input that is not differentiable.
        CapabilityError: the component cannot do what a transformation needs.
        ComponentError: the component failed. A compiled program raises an error of JAX in its place, whose
            text describes it; `component_errors` gives the exception itself.

    Example:
        >>> import jax, numpy as np
        >>> from chainrule import from_callable
        >>> sine = from_callable(
        ...     np.sin, jvp=lambda primals, tangents: np.cos(primals[0]) * tangents[0], abstract=lambda x: x
        ... )
        >>> print(round(float(jax.jit(jax.grad(sine))(0.0)), 3))
        1.0
    """
    options = Options(
        vmap_method=vmap_method,
        materialize_jacobian=materialize_jacobian,
        spot_check=spot_check,
        effects=effects,
        max_concurrency=max_concurrency,
        infer_by_evaluation=infer_by_evaluation,
    )
    target = as_target(component) if derive else as_target(component).written
    tag = "intermediates" if intermediates is True else intermediates
    inline = target.jax_derivatives if inline is None else inline
    if not tag or not is_captured(tag) or (inline and target.jax_function is not None):
        return _call(target, inputs, options, inline=inline)
    opened = open_target(target, tag)
    types = opened.types(inputs)
    answer = _call(opened, sow_cotangents(opened, inputs, types), options, inline=False)
    return sow_values(opened, answer, types)


@names_its_arguments
def from_callable(
    function: Callable[..., Any],
    *,
    jvp: Callable[[tuple[Any, ...], tuple[Any, ...]], Any] | None = None,
    vjp: Callable[[tuple[Any, ...], Any], Any] | None = None,
    hvp: Callable[[tuple[Any, ...], Any, tuple[Any, ...]], Any] | None = None,
    abstract: Callable[..., Any] | Literal["evaluate"] | Any | None = None,
    name: str | None = None,
    batching: Batching | None = None,
    max_concurrency: int = 1,
    prices: Mapping[str, float] | None = None,
    sparsity: Any = None,
    vmap_method: VmapMethod | None = "auto",
    effects: Effects = "none",
) -> Callable[..., Any]:
    """Give NumPy, SciPy or C code the treatment of a component, without writing one.

    The function is called on the host with NumPy arrays of its own: it may overwrite, keep and return them.
    It must not call JAX.

    Args:
        function: of positional arguments, which may be passed by name, arrays or nested data; returns arrays
            or nested data. Floats and complex numbers among the arguments are operands; integers, booleans
            and text are static.
        jvp: `jvp(primals, tangents) -> tangents of the result`. One of `jvp` and `vjp` is enough: the other
            product is then made of several of it.
        vjp: `vjp(primals, cotangents of the result) -> one cotangent per argument, as a tuple`.
        hvp: `hvp(primals, cotangents, tangents)`: the derivative of `vjp` along tangents of the arguments, in
            the form of `vjp`'s result. Gives second derivatives.
        abstract: the result's shapes and dtypes: a function of the arguments' shapes and dtypes, or a fixed
            tree, or `"evaluate"` to see them in one real evaluation of ones per signature.
        name: for messages.
        batching: `"elementwise"` or `"leading"` if the function treats leading axes as batch axes.
        max_concurrency: how many threads may be inside the function at once, for `vmap`.
        prices: what calls cost, for plans of Jacobians, as of a component.
        sparsity: which elements of the result depend on which elements of the argument: `"diagonal"`, a band
            such as `{"lower": 1, "upper": 1}`, or a matrix that is not zero there; with several arguments or
            results `{result path: {argument path: block}}`, such as `{"": {"[0]": "diagonal"}}`.
        vmap_method: see `apply_component`.
        effects: see `apply_component`.

    Returns:
        A function of the same arguments for use inside JAX.

    Example:
        >>> import jax, numpy as np
        >>> from chainrule import from_callable
        >>> def solve_vjp(primals, u):
        ...     a, b = primals
        ...     w = np.linalg.solve(a.T, u)
        ...     return -np.outer(w, np.linalg.solve(a, b)), w
        >>> solve = from_callable(np.linalg.solve, vjp=solve_vjp, abstract=lambda a, b: b)
        >>> a, b = np.eye(2, dtype="float32") * 2, np.ones(2, "float32")
        >>> print(jax.jit(jax.grad(lambda b: solve(a, b).sum()))(b))
        [0.5 0.5]
    """
    target = CallableTarget(
        function, jvp=jvp, vjp=vjp, hvp=hvp, abstract=abstract, name=name, batching=batching,
        max_concurrency=max_concurrency, prices=prices, sparsity=sparsity,
    )  # fmt: skip
    options = Options(
        vmap_method=vmap_method,
        effects=effects,
        infer_by_evaluation=isinstance(abstract, str) and abstract == "evaluate",
    )

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if named:
            arguments = positional_arguments(function, target.name, arguments, named)
        return _call(target, map_with_paths(_float_as_array, arguments), options, inline=False)

    return call


def _float_as_array(path: str, leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, (float, complex)) else leaf


def _call(target: Target, inputs: Any, options: Options, *, inline: bool) -> Any:
    skeleton, leaves = take_inputs_apart(target, inputs, jnp.asarray, _is_traced)
    _check_statics(target, skeleton)
    pairs = zip(skeleton.paths, leaves, strict=True)
    arrays = [_as_operand(target, path, leaf) for path, leaf in pairs]
    if not (any(map(_is_traced, arrays)) or is_staging()):
        on_device = "abstract_eval" in target.endpoints and takes_device_memory(target, arrays)
        if not on_device:
            return _call_now(target, skeleton, arrays)
    if inline and target.jax_function is not None:
        try:
            return call_inline(target, skeleton, arrays)
        except NotTraceableError:
            pass
    if any(map(has_symbolic_size, arrays)):
        raise not_exportable(target)
    types = [ArrayType(array.shape, array.dtype) for array in arrays]
    site = find_site(target, options, skeleton, types, jax.dtypes.canonicalize_dtype)
    warn_if_narrowed(target.name, {p.path: p.wire_dtype or p.type.dtype for p in site.outputs})
    return site.output_skeleton.build(call_site(site, arrays))


def _call_now(target: Target, skeleton: Skeleton, operands: list[jax.Array]) -> Any:
    """Outside of transformations nothing needs to be known beforehand: call, and hand out what comes."""
    arrays = [
        np.asarray(operand, dtype_to_send(operand.dtype, target.input_dtype(path)))
        for path, operand in zip(skeleton.paths, operands, strict=True)
    ]
    outputs = target.apply(skeleton.build(arrays))
    output_skeleton, results = take_apart(outputs, lambda path, leaf: is_arraylike(leaf))
    check_nans(target, output_skeleton.paths, results)
    warn_if_narrowed(
        target.name,
        {p: np.dtype(r.dtype) for p, r in zip(output_skeleton.paths, results, strict=True)},
    )
    # Copied: JAX may keep the memory, and a component may return the same buffer every time.
    return output_skeleton.build(hand_out([np.array(result) for result in results], operands))


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def _as_operand(target: Target, path: str, leaf: Any) -> jax.Array:
    """An array of any framework as one of JAX.

    Raises:
        InputError: it has a dtype that JAX or NumPy does not have, or JAX cannot read it.
    """
    if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))  # JAX has arrays of this machine only
    try:
        array = jnp.asarray(leaf)
    except TypeError as error:
        raise InputError(
            f"`{path}` of {target.name} is an array of {leaf.dtype}, which JAX does not have. Pass "
            "numbers, or text and objects outside of arrays.",
            code="not_an_array",
            path=path,
        ) from error
    except (ValueError, RuntimeError) as error:
        # A masked array, or a torch tensor with a gradient: what these libraries say tells what to do.
        raise InputError(
            f"`{path}` of {target.name} is a {type(leaf).__name__} that JAX cannot read: {error}",
            code="not_an_array",
            path=path,
        ) from error
    if not isinstance(array.dtype, np.dtype):
        raise InputError(
            f"`{path}` of {target.name} is an array of {array.dtype}, which only JAX has. Pass the numbers "
            "behind random keys: `jax.random.key_data(key)`.",
            code="not_an_array",
            path=path,
        )
    if _is_wrapped(leaf, array):
        raise InputError(
            f"`{path}` of {target.name} has integers that do not fit into the 32 bits that JAX holds. Call "
            '`jax.config.update("jax_enable_x64", True)` at the start of your program.',
            code="array_value_out_of_range",
            path=path,
        )
    return array


def _is_wrapped(leaf: Any, array: Any) -> bool:
    """Whether integers changed because JAX is configured to hold 32 bits."""
    if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype == array.dtype:
        return False
    return leaf.dtype.kind in "iu" and not np.array_equal(leaf.astype(array.dtype), leaf)


def _check_statics(target: Target, skeleton: Skeleton) -> None:
    """Check that no traced value is hidden in an object into which the bridge does not look.

    Raises:
        InputError: one is.
    """
    for path, leaf in skeleton.statics:
        if not isinstance(leaf, _PLAIN) and _hides_tracer(leaf):
            raise InputError(
                f"`{path}` of {target.name} is a {type(leaf).__name__} with traced values in it. Pass them "
                "in dictionaries, lists, tuples or models of pydantic (in dataclasses only where a schema "
                "declares arrays in their fields): inside of other objects they are not found.",
                code="hidden_tracer",
                path=path,
            )


def _hides_tracer(leaf: Any) -> bool:
    parts = jax.tree.leaves(leaf)
    if len(parts) == 1 and parts[0] is leaf:  # an object of a class that JAX does not know
        parts = list(getattr(leaf, "__dict__", {}).values())
    return any(isinstance(part, jax.core.Tracer) for part in parts)
