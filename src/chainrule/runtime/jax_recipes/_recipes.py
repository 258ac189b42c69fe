"""The recipes: outputs, shapes, what a function sows, and Jacobian, vector and Hessian products."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import jax
import jax.numpy as jnp

from chainrule._endpoints import JVP, VJP
from chainrule._errors import CapabilityError, InputError
from chainrule._partition import seal, unseal
from chainrule.runtime._derivatives._layout import check_keys, is_abstract, shape_and_dtype
from chainrule.runtime._schema._plain import dumped
from chainrule.runtime.jax_recipes._programs import (
    Narrowed,
    Program,
    Selection,
    fit,
    is_array,
    narrow,
    prepare,
    split,
    zeros_like_all,
)
from chainrule.runtime.jax_recipes._residuals import apply_and_keep, vjp_from_residuals

Apply = Callable[[Any], Any]

ROWS_AT_ONCE = 64
"""VJPs in one batch: enough to amortise, few enough to hold."""


def jax_apply(apply_jit: Callable[[Any], Any], inputs: Any) -> Any:
    """Call a jitted function `dict -> dict` with an endpoint's inputs.

    With `set_jax_vjp_cache_size` on, the backward function is kept for a `jax_vjp` of the same inputs.

    Args:
        apply_jit: the function; `equinox.filter_jit` where some leaves are not arrays.
        inputs: a model or nested mappings.

    Returns:
        What `apply_jit` returns.
    """
    template, arrays = split(inputs)
    kept = apply_and_keep(Selection(apply_jit, template), arrays)
    return apply_jit(template.join(arrays)) if kept is None else unseal(kept)


def jax_abstract_eval(apply_jit: Callable[[Any], Any], abstract_inputs: Any) -> Any:
    """Evaluate a jitted function on shapes.

    Args:
        apply_jit: a jitted function `dict -> dict`.
        abstract_inputs: inputs whose arrays are `{"shape": ..., "dtype": ...}`, as a model or nested
            mappings; other leaves keep their values and are static.

    Returns:
        The outputs, arrays again as `{"shape": ..., "dtype": ...}`.

    Example:
        >>> jax_abstract_eval(lambda d: {"y": d["x"].sum()}, {"x": {"shape": (3,), "dtype": "float32"}})
        {'y': {'shape': (), 'dtype': 'float32'}}
    """
    template, shapes = split(abstract_arrays(abstract_inputs))
    outputs = jax.eval_shape(lambda arrays: seal(apply_jit(template.join(arrays))), shapes)
    return describe_arrays(unseal(outputs))


def abstract_arrays(abstract_inputs: Any) -> Any:
    """Inputs with JAX's `ShapeDtypeStruct` in place of every `{"shape": ..., "dtype": ...}`."""
    return jax.tree_util.tree_map(_to_shape, dumped(abstract_inputs), is_leaf=is_abstract)


def describe_arrays(tree: Any) -> Any:
    """A tree with `{"shape": ..., "dtype": ...}` in place of every array."""
    return jax.tree_util.tree_map(_from_shape, tree)


def _to_shape(node: Any) -> Any:
    if not is_abstract(node):
        return node
    shape, dtype = shape_and_dtype(node)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def _from_shape(leaf: Any) -> Any:
    return {"shape": leaf.shape, "dtype": leaf.dtype.name} if is_array(leaf) else leaf


def jax_jvp(
    apply_jit: Apply,
    inputs: Any,
    jvp_inputs: Collection[str],
    jvp_outputs: Collection[str],
    tangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, jax.Array]:
    """The Jacobian-vector product of a JAX function.

    A function with a reverse derivative only (`jax.custom_vjp`, the default adjoint of diffrax) takes one VJP
    per output element.

    Args:
        apply_jit: a jitted function `dict -> dict`; `equinox.filter_jit` where leaves are not arrays.
        inputs: the endpoint's inputs, a model or nested mappings.
        jvp_inputs: paths of the inputs.
        jvp_outputs: paths of the outputs.
        tangent_vector: `{input path: array}` in the shape of the input, cast to its dtype.
        batched: whether tangents carry a leading batch axis; all are pushed forward in one call, and the
            result has that axis too.

    Returns:
        `{output path: array}`.

    Raises:
        PathError: a path does not exist or is not an array.
        InputError: the tangent's keys or shapes do not fit.
    """
    program, arrays = prepare(_jvp, apply_jit, inputs, jvp_inputs, jvp_outputs, batched)
    check_keys(tangent_vector, program.selection.inputs, str(JVP.vector))
    call = (apply_jit, inputs, jvp_inputs, jvp_outputs, batched)
    other = partial(_prepared, _jvp_by_rows, *call)
    return run_either(program, other, arrays, dict(tangent_vector))


def jax_vjp(
    apply_jit: Apply,
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, jax.Array]:
    """The vector-Jacobian product of a JAX function.

    Args:
        cotangent_vector: `{output path: array}` in the shape of the output, cast to its dtype.

    The other arguments are those of `jax_jvp`. With `set_jax_vjp_cache_size` on, a call after a
    `jax_apply` of the same inputs starts from what that call kept and skips the forward pass.

    Returns:
        `{input path: array}`.
    """
    program, arrays = prepare(_vjp, apply_jit, inputs, vjp_inputs, vjp_outputs, batched)
    check_keys(cotangent_vector, program.selection.outputs, str(VJP.vector))
    cotangents = dict(cotangent_vector)
    reused = vjp_from_residuals(program.selection, arrays, cotangents, batched)
    return program.run(arrays, cotangents) if reused is None else reused


def jax_value_and_vjp(
    apply_jit: Apply,
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
) -> tuple[Any, dict[str, jax.Array]]:
    """All outputs and the vector-Jacobian product, from one forward and one backward pass.

    Returns:
        The outputs, as `jax_apply` returns them, and `{input path: array}`.
    """
    program, arrays = prepare(_value_and_vjp, apply_jit, inputs, vjp_inputs, vjp_outputs)
    check_keys(cotangent_vector, program.selection.outputs, str(VJP.vector))
    outputs, gradient = program.run(arrays, dict(cotangent_vector))
    return unseal(outputs), gradient


def jax_hessian_vector_product(
    apply_jit: Apply,
    inputs: Any,
    hvp_inputs: Collection[str],
    hvp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    tangent_vector: Mapping[str, Any],
) -> dict[str, jax.Array]:
    """The Hessian of ⟨cotangent, outputs⟩ times the tangent: d/dt of the VJP at x + t·tangent.

    Args:
        apply_jit: as in `jax_jvp`.
        inputs: as in `jax_jvp`.
        hvp_inputs: paths of the inputs, in which the Hessian is taken.
        hvp_outputs: paths of the outputs that are weighed.
        cotangent_vector: `{output path: array}`, the weights.
        tangent_vector: `{input path: array}`, the direction.

    Returns:
        `{input path: array}`.
    """
    program, arrays = prepare(_hvp, apply_jit, inputs, hvp_inputs, hvp_outputs)
    check_keys(cotangent_vector, program.selection.outputs, "cotangent_vector")
    check_keys(tangent_vector, program.selection.inputs, "tangent_vector")
    call = (apply_jit, inputs, hvp_inputs, hvp_outputs)
    other = partial(_prepared, _hvp_transposed, *call)
    try:
        return run_either(program, other, arrays, dict(cotangent_vector), dict(tangent_vector))
    except TypeError as error:
        # An error in the author's function is raised here, as it is.
        jax.eval_shape(
            lambda given: seal(apply_jit(program.selection.template.join(given))), arrays
        )
        raise CapabilityError(
            f"JAX has no second derivative of this function ({error}). Give the component a "
            "hessian_vector_product of its own, for example "
            "chainrule.runtime.derivatives.hvp_from_vjp, which differences the VJP.",
            code="no_second_derivative",
        ) from error


def _prepared(*call: Any) -> Program:
    program, _ = prepare(*call)
    return program


_impossible: WeakSet[Program] = WeakSet()
"""Programs for which JAX has no rule: each was found out once."""


def run_either(program: Program, other: Callable[[], Program], *arguments: Any) -> Any:
    """Run a derivative, or another way to the same thing where JAX has no rule for it.

    JAX raises a `TypeError` where it is asked for the forward derivative of a `custom_vjp` function, and not
    before it compiles the program. If the other way does not work either, the function itself is at fault.
    """
    if program in _impossible:
        return other().run(*arguments)
    try:
        return program.run(*arguments)
    except TypeError as error:
        try:
            found = other().run(*arguments)
        except Exception:
            raise error from None
        _impossible.add(program)
        return found


def _jvp(selection: Selection, batched: bool, arrays: Any, tangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)

    def push(tangent: dict[str, Any]) -> Any:
        _, pushed, (exact, _) = jax.jvp(
            narrowed.function, (narrowed.primals,), (tangent,), has_aux=True
        )
        return pushed | zeros_like_all(exact)

    return _push_all(push, narrowed, batched, tangents)


def _jvp_by_rows(selection: Selection, batched: bool, arrays: Any, tangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)
    return _push_all(partial(_push_by_rows, narrowed), narrowed, batched, tangents)


def _push_all(push: Apply, narrowed: Narrowed, batched: bool, tangents: dict[str, Any]) -> Any:
    fitted = fit(tangents, narrowed.primals, batched=batched)
    return jax.vmap(push)(fitted) if batched else push(fitted)


def _push_by_rows(narrowed: Narrowed, tangent: dict[str, Any]) -> dict[str, jax.Array]:
    """J v from one VJP per output element, for functions that have only a reverse derivative.

    With JAX's pairing Re⟨u, z⟩ without conjugation, element k of J v has the real part Re⟨Jᵀeₖ, v⟩ and the
    imaginary part Re⟨Jᵀ(−i eₖ), v⟩.
    """
    outputs, pull, (exact, _) = jax.vjp(narrowed.function, narrowed.primals, has_aux=True)

    def entries(path: str) -> jax.Array:
        output = outputs[path]

        def entry(index: jax.Array, unit: complex) -> jax.Array:
            seed = jnp.zeros(output.size, output.dtype).at[index].set(unit).reshape(output.shape)
            others = {p: jnp.zeros_like(out) for p, out in outputs.items() if p != path}
            (gradient,) = pull({path: seed, **others})
            products = [jnp.sum(gradient[p] * v).real for p, v in tangent.items()]
            return jnp.sum(jnp.stack(products)) if products else jnp.zeros(())

        def element(index: jax.Array) -> jax.Array:
            if not jnp.iscomplexobj(output):
                return entry(index, 1.0).astype(output.dtype)
            return jax.lax.complex(entry(index, 1.0), entry(index, -1j)).astype(output.dtype)

        found = jax.lax.map(element, jnp.arange(output.size), batch_size=ROWS_AT_ONCE)
        return found.reshape(output.shape)

    return {path: entries(path) for path in outputs} | zeros_like_all(exact)


def _vjp(selection: Selection, batched: bool, arrays: Any, cotangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)
    outputs, pull, _ = jax.vjp(narrowed.function, narrowed.primals, has_aux=True)
    cotangents = fit(cotangents, outputs, batched=batched)

    def pull_back(cotangent: dict[str, Any]) -> Any:
        return pull(cotangent)[0] | zeros_like_all(narrowed.exact)

    return jax.vmap(pull_back)(cotangents) if batched else pull_back(cotangents)


def _value_and_vjp(selection: Selection, arrays: Any, cotangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)
    outputs, pull, (_, everything) = jax.vjp(narrowed.function, narrowed.primals, has_aux=True)
    (gradient,) = pull(fit(cotangents, outputs))
    return everything, gradient | zeros_like_all(narrowed.exact)


def _hvp(
    selection: Selection, arrays: Any, cotangents: dict[str, Any], tangents: dict[str, Any]
) -> Any:
    narrowed = narrow(selection, arrays)
    directions = fit(tangents, narrowed.primals)
    # Forward over reverse: d/dt Jᵀ(x + t v) u is H v for the function ⟨u, f⟩. One gradient and its tangent,
    # and nothing of the reverse pass has to be kept for a second one.
    _, product = jax.jvp(_gradient(narrowed, cotangents), (narrowed.primals,), (directions,))
    return product | zeros_like_all(narrowed.exact)


def _hvp_transposed(
    selection: Selection, arrays: Any, cotangents: dict[str, Any], tangents: dict[str, Any]
) -> Any:
    """The Hessian H is symmetric: H v = Hᵀv, which is the VJP of the gradient with v as cotangent."""
    narrowed = narrow(selection, arrays)
    _, pull = jax.vjp(_gradient(narrowed, cotangents), narrowed.primals)
    (product,) = pull(fit(tangents, narrowed.primals))
    return product | zeros_like_all(narrowed.exact)


def _gradient(narrowed: Narrowed, cotangents: dict[str, Any]) -> Apply:
    def gradient(primals: dict[str, Any]) -> Any:
        outputs, pull, _ = jax.vjp(narrowed.function, primals, has_aux=True)
        return pull(fit(cotangents, outputs))[0]

    return gradient


def jax_tagged_intermediates(
    apply_jit: Callable[[Any], Any],
    inputs: Any,
    tag: str = "intermediates",
    tangent_vector: Mapping[str, Any] | None = None,
    cotangent_vector: Mapping[str, Any] | None = None,
    *,
    abstract: bool = False,
) -> dict[str, dict[str, Any]]:
    """The values that a function tags with `sow`, and their tangents or cotangents.

    Args:
        apply_jit: a jitted function `dict -> dict`.
        inputs: the endpoint's inputs; with `abstract` as in `jax_abstract_eval`.
        tag: the sows to look for.
        tangent_vector: `{input path: array}`: push it forward and give tangents too.
        cotangent_vector: `{output path: array}`: pull it back and give cotangents too.
        abstract: give `{"shape": …, "dtype": …}` in place of every array, and compute nothing.

    Returns:
        `{name: {"primal": …, "tangent" or "cotangent": …}}`, as `save_intermediates` gives it.

    Raises:
        InputError: both a tangent and a cotangent.

    Example:
        >>> import jax
        >>> from chainrule.harvest import sow
        >>> square = jax.jit(lambda d: {"y": sow(d["x"] ** 2, "square") * 3})
        >>> found = jax_tagged_intermediates(square, {"x": jax.numpy.float32(2)}, cotangent_vector={"y": 1})
        >>> {mode: float(value) for mode, value in found["square"].items()}
        {'cotangent': 3.0, 'primal': 4.0}
    """
    if tangent_vector is not None and cotangent_vector is not None:
        raise InputError(
            "Expected a tangent_vector, a cotangent_vector or neither; found both.",
            code="bad_argument",
            path="cotangent_vector",
        )
    if abstract:
        template, shapes = split(abstract_arrays(inputs))
        found = jax.eval_shape(partial(_values, Selection(apply_jit, template), tag), shapes)
        return describe_arrays(unseal(found))
    tangents, cotangents = dict(tangent_vector or {}), dict(cotangent_vector or {})
    derivative = _tangents if tangents else _cotangents if cotangents else _values
    program, arrays = prepare(derivative, apply_jit, inputs, tangents, cotangents, tag)
    return unseal(program.run(arrays, *filter(None, (tangents, cotangents))))


def _captured(function: Callable[..., Any], tag: str, *args: Any) -> Any:
    from chainrule.harvest import save_intermediates

    return seal(save_intermediates(function, tag=tag)(*args)[1])


def _values(selection: Selection, tag: str, arrays: Any) -> Any:
    def run(arrays: Any) -> None:
        selection.apply_jit(selection.template.join(arrays))

    return _captured(run, tag, arrays)


def _tangents(selection: Selection, tag: str, arrays: Any, tangents: dict[str, Any]) -> Any:
    narrowed = narrow(selection, arrays)

    def push(primals: Any, tangents: Any) -> None:
        jax.jvp(narrowed.function, (primals,), (tangents,), has_aux=True)

    return _captured(push, tag, narrowed.primals, fit(tangents, narrowed.primals))


def _cotangents(selection: Selection, tag: str, arrays: Any, cotangents: dict[str, Any]) -> Any:
    def outputs_of(arrays: Any) -> Any:
        narrowed = narrow(selection, arrays)
        return narrowed.function(narrowed.primals)

    def pull(arrays: Any, cotangents: dict[str, Any]) -> None:
        outputs, pull_back, _ = jax.vjp(outputs_of, arrays, has_aux=True)
        pull_back(fit(cotangents, outputs))

    return _captured(pull, tag, arrays, cotangents)
