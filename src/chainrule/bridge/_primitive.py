"""One JAX primitive for every call of a component, and its rules.

    host_call_p.bind(*primals, *vectors, call=Call(site, request, batch))

The rules only rearrange calls (`_requests` has the algebra): differentiating appends a slot, transposing
exchanges a slot and the result, batching adds an axis. What a request means to a component is in `_routes`.

Batching, in this order:

    Jacobian      only vectors are batched, as in `jacfwd` and `jacrev`, there are enough of them and the
                  target has a Jacobian: ask for it once and multiply.
    native        the target says how it batches (or the caller does, by `expand_dims` or
                  `broadcast_all`): one call with the batch axis in front of every array.
    host loop     one host call that fans out over the examples, concurrently where the target allows; a
                  target that takes batches of vectors gets those of one point in one request.

Ranks say nothing about how a function batches: a matrix product takes a third axis without complaint and
computes something else. So nothing is guessed from them.

Nothing is kept here between a forward and a backward call: the transposed call gets the primals again, as
operands. What a component keeps of its forward call (residuals of a vjp) is in the component's process, found
by the content of the inputs, and dropped there when others need the room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, Sharding

from chainrule._endpoints import JACOBIAN
from chainrule._errors import CapabilityError
from chainrule._jaxpr import (
    ORDERED_EFFECT,
    OutsideCall,
    array_aval,
    as_type,
    divided_alike,
    hands_over_device_memory,
    has_mesh_in_type,
    is_exporting,
    lower_device_call,
    lower_host_call,
    lower_overlapping,
    register_call,
    register_outside_call,
    see_nans,
    uses_ffi,
    vary_alike,
)
from chainrule.bridge._failures import component_errors
from chainrule.bridge._host import device_library_of, host_call, overlapping_pair
from chainrule.bridge._inline import NotTraceableError, trace_call
from chainrule.bridge._products import CallProducts, dependence_of
from chainrule.bridge._requests import (
    Call,
    Request,
    Space,
    Vectors,
    check_inputs,
    not_differentiable,
    require_own_endpoint,
)
from chainrule.bridge._site import Port, Site, batched_site, broadcast_site
from chainrule.bridge._target import DECLARED, Target
from chainrule.bridge._types import ArrayType, is_inexact

host_call_p = Primitive("host_call")
host_call_p.multiple_results = True


def _describe(params: Mapping[str, Any]) -> OutsideCall:
    """The component and the request of a call, for what shows or prices programs."""
    call = params["call"]
    batch = "".join(f" × {size}" for size in call.batch.sizes)
    products = CallProducts(call.site, _bind) if CallProducts.fit(call) else None
    count = math.prod(call.batch.sizes)
    target, is_apply = call.site.target, call.request.name == "apply"
    inputs = Space("inputs", tuple(range(len(call.site.inputs))))
    return OutsideCall(
        target.name,
        call.request.name + batch,
        target.framework,
        target.address,
        tuple(p for space in (inputs, *call.request.slots) for p in space.paths(call.site)),
        call.request.result.paths(call.site),
        count,
        products,
        target.prices,
        target.measure,
        partial(dependence_of, call) if is_apply else lambda result, operand: None,
    )


def call_site(site: Site, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of a site for arrays or tracers."""
    return _bind(Call.apply(site), arrays)


def _bind(call: Call, operands: Sequence[Any]) -> list[Any]:
    """The results of a call, as an equation of what is being traced."""
    return host_call_p.bind(*vary_alike(operands), call=call)


# --- Running: outside of `jit`, where XLA has no part in a call and exceptions pass as they are.


def _implement(*operands: Any, call: Call) -> list[jax.Array]:
    require_own_endpoint(call.site, call.request)
    if takes_device_memory(call.site.target, operands):
        with component_errors():
            return jax.block_until_ready(_compiled(call)(*operands))
    results = host_call(call).evaluate([np.asarray(operand) for operand in operands])
    check_nans(call.site.target, call.request.result.paths(call.site), results)
    return hand_out(results, operands)


def takes_device_memory(target: Target, operands: Sequence[Any]) -> bool:
    """Whether a call stays on a GPU: the target computes there, and an operand is there."""
    return target.device_library is not None and any(
        device.platform == "gpu" for operand in operands for device in operand.devices()
    )


def _compiled(call: Call) -> Callable[..., list[jax.Array]]:
    """A call as a program of its own, the same one every time: only XLA hands over device memory."""
    known, key = call.site.host_functions, ("compiled", call.request, call.batch)
    return known.get(key) or known.setdefault(key, jax.jit(lambda *arrays: _bind(call, arrays)))


def check_nans(target: Target, paths: Sequence[str], results: Sequence[Any]) -> None:
    """What `jax_debug_nans` asks of every operation; here the message can say whose NaN it is."""
    if not jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        return
    for path, result in zip(paths, results, strict=False):
        array = np.asarray(result)
        if is_inexact(array.dtype) and np.isnan(array).any():
            where = f" at `{path}`" if path else ""
            raise FloatingPointError(f"{target.name} returned NaN{where} (jax_debug_nans is on).")


def hand_out(results: Sequence[np.ndarray], operands: Sequence[Any]) -> list[jax.Array]:
    """Results of a call outside of `jit`, to which nothing else writes, where the operands are.

    That is on one device if an operand was put there, and whole on all devices of a mesh whose axes are part
    of an operand's type: such an operand can be combined with nothing else.
    """
    places = (_place_of(operand) for operand in operands if isinstance(operand, jax.Array))
    place = next((place for place in places if place is not None), None)
    return [jax.device_put(result, place) for result in results]


def _place_of(operand: jax.Array) -> Sharding | None:
    if operand.committed and len(operand.devices()) == 1:
        return operand.sharding
    if isinstance(operand.sharding, NamedSharding) and has_mesh_in_type(operand):
        return NamedSharding(operand.sharding.mesh, jax.P())
    return None


def _evaluate_abstractly(*operands: Any, call: Call) -> tuple[list[Any], set[Any]]:
    effects = {ORDERED_EFFECT} if _is_ordered(call) else set()
    return [array_aval(type_.shape, type_.dtype, operands) for type_ in call.result_types], effects


def _is_ordered(call: Call) -> bool:
    return call.site.options.effects == "ordered"


# --- Lowering.


def _lower(ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    require_own_endpoint(call.site, call.request)
    target = call.site.target
    if target.runs_jax:
        return _lower_traced(ctx, *operands, call=call)
    if is_exporting(ctx):
        raise not_exportable(target)
    if not _is_ordered(call) and hands_over_device_memory(ctx) and device_library_of(target):
        return lower_device_call(ctx, *operands, function=host_call(call))
    if target.is_remote and not _is_ordered(call) and uses_ffi(ctx):
        return lower_overlapping(ctx, *operands, **overlapping_pair(call))
    return lower_host_call(ctx, *operands, function=host_call(call), ordered=_is_ordered(call))


def not_exportable(target: Target) -> CapabilityError:
    """What to raise where `jax.export`, or a symbolic shape, which only `jax.export` has, meets a call."""
    return CapabilityError(
        f"{target.name} is called on this host and cannot be part of an exported program. Only "
        "components written in JAX that run in this process can: they become part of the program.",
        code="not_exportable",
    )


def _lower_traced(ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    """The call of a component that is written in JAX, as part of the program."""
    target = call.site.target
    try:
        if target.jax_function is None or _is_ordered(call):
            raise NotTraceableError
        return mlir.lower_fun(partial(trace_call, call), multiple_results=True)(ctx, *operands)
    except NotTraceableError as error:
        raise CapabilityError(
            f"{call!r} runs JAX and would do so inside a compiled program's call of the host, where JAX can "
            "deadlock. It cannot be part of the program, because it needs the numbers themselves or has side "
            "effects. Make it traceable, let JAX differentiate the component's function (`inline=True`), or "
            "give it a process of its own: `chainrule.client.Component.from_source`, or serve it.",
            code="jax_in_host_call",
        ) from error


# --- Differentiating.


def _jvp_rule(operands: Any, tangents: Any, *, call: Call) -> tuple[list[Any], list[Any]]:
    results = _bind(call, operands)
    call, operands, tangents = _broadcast(call, operands, tangents)
    if call.request.columns is not None:
        return results, _jacobian_tangents(call, operands, tangents)
    terms = [
        _bind(term, term_operands)
        for term, term_operands in call.push_forward(operands, tangents, _is_nonzero)
    ]
    total = [jax.tree.reduce(jnp.add, list(parts)) for parts in zip(*terms, strict=True)]
    return results, _place(call, results, total, [t for t in tangents if _is_nonzero(t)])


def _is_nonzero(tangent: Any) -> bool:
    """Whether a tangent is there: JAX has symbolic zeros, and `float0` for tangents of integers."""
    return not isinstance(tangent, ad.Zero) and tangent.dtype != jax.dtypes.float0


def _broadcast(call: Call, operands: Any, tangents: Any) -> tuple[Call, list[Any], list[Any]]:
    """The same with the whole batch in front of every operand, where the target does the batch.

    An operand with a 1 in front was used by all examples. Its cotangent is a sum over them, which JAX's
    transpose of `broadcast_to` makes; the target's endpoint would not sum.
    """
    site = broadcast_site(call.site)
    if site is call.site:
        return call, operands, tangents
    call = replace(call, site=site)
    shapes = [type_.shape for type_ in call.operand_types]
    return (
        call,
        [jnp.broadcast_to(o, shape) for o, shape in zip(operands, shapes, strict=True)],
        [
            jnp.broadcast_to(t, shape) if _is_nonzero(t) else t
            for t, shape in zip(tangents, shapes, strict=True)
        ],
    )


def _place(call: Call, results: list[Any], tangents: list[Any], moving: list[Any]) -> list[Any]:
    """Tangents of all results of a call, of which some do not move."""
    ports, types = call.request.result.ports(call.site), call.result_types
    placed = []
    for tangent, port, result, type_ in zip(
        call.place(tangents), ports, results, types, strict=True
    ):
        if tangent is not None:
            placed.append(tangent)
        elif is_inexact(type_.dtype):
            whose = {"port": port, "name": call.site.target.name}
            placed.append(_constant_p.bind(*vary_alike(moving), type_=type_, **whose))
        else:
            placed.append(ad.Zero(jax.typeof(result).to_tangent_aval()))
    return placed


def _transpose_rule(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    """The cotangents of the vectors in one slot: the one that holds unknown vectors.

    JAX transposes what is linear in the unknown operands. A call is linear in each of its slots, not in its
    primals and not in two slots together.
    """
    unknown = [ad.is_undefined_primal(operand) for operand in operands]
    if any(unknown[: len(call.site.inputs)]):
        raise _not_linear(call)
    given = [cotangent if _is_nonzero(cotangent) else None for cotangent in cotangents]
    if all(cotangent is None for cotangent in given):
        pairs = zip(operands, unknown, strict=True)
        return [ad.Zero(o.aval) if is_unknown else None for o, is_unknown in pairs]
    found = call.pull_back(operands, given, unknown, _bind)
    return [
        None if cotangent is None else as_type(cotangent, operand.aval)
        for cotangent, operand in zip(found, operands, strict=True)
    ]


def _not_linear(call: Call) -> CapabilityError:
    return CapabilityError(
        f"{call!r} was to be transposed, which only a linear function can be, and nothing says that "
        f"{call.site.target.name} is linear in its inputs. Transpose its derivative, which is: "
        "`jax.vjp(f, x)[1]`, or `jax.linear_transpose(jax.linearize(f, x)[1], x)`.",
        code="not_linear",
    )


def _jacobian_tangents(call: Call, operands: Any, tangents: Any) -> list[Any]:
    """The derivative of a Jacobian, which no endpoint gives, through the rows of which it consists."""
    primals, _ = call.open(operands)
    moving = call.open(tangents)[0].keep(_is_nonzero)
    positions = {position: number for number, position in enumerate(moving.space.positions)}

    def rows(*values: Any) -> list[Any]:
        replaced = tuple(
            values[positions[position]] if position in positions else value
            for position, value in zip(primals.space.positions, primals.values, strict=True)
        )
        return _jacobian_by_rows(call, Vectors(primals.space, replaced, primals.mapped))

    check_inputs(call.site, moving.space)
    start = [primals.values[position] for position in moving.space.positions]
    return jax.jvp(rows, start, list(moving.values))[1]


def _jacobian_by_rows(call: Call, primals: Vectors) -> list[Any]:
    """Every row is a vjp of a unit vector, eᵢᵀ J = (Jᵀ eᵢ)ᵀ; the units are an innermost batch axis."""
    sizes = call.batch.sizes
    columns = call.request.columns
    assert columns is not None
    blocks = []
    for position, type_ in zip(
        call.request.result.positions, call.request.result.types(call.site), strict=True
    ):
        # A vjp with the cotangent eᵢ is row i. Rows can be differentiated by the rules of the vjp (an hvp); a
        # Jacobian has no endpoint for its derivative.
        units = jnp.eye(type_.size, dtype=type_.dtype).reshape(type_.size, *type_.shape)
        axes = (*(False for _ in sizes), True)
        given = Vectors(Space("outputs", (position,)), (units,), (axes,))
        inner = primals.with_mapped(lambda mapped: (*mapped, False))
        found = _bind(*Call.make(call.site, (*sizes, type_.size), inner, [given], columns))
        for block, column in zip(found, columns.types(call.site), strict=True):
            blocks.append(block.reshape((*sizes, *type_.shape, *column.shape)).astype(type_.dtype))
    return blocks


# The tangent of an output that is not marked `Differentiable`: zero going forward, like a constant, and an
# error where its gradient is asked for, which would otherwise be a silent zero. It takes the moving tangents
# as operands, so that JAX sees it as linear in them and transposes it.
_constant_p = Primitive("undifferentiable_output")


def _transpose_constant(cotangent: Any, *tangents: Any, type_: Any, port: Port, name: str) -> Any:
    raise not_differentiable(name, port)


def _batch_constant(tangents: Any, dims: Any, *, type_: ArrayType, **whose: Any) -> tuple[Any, int]:
    pairs = zip(tangents, dims, strict=True)
    size = next(tangent.shape[dim] for tangent, dim in pairs if dim is not None)
    return _constant_p.bind(*tangents, type_=type_.with_leading(size), **whose), 0


def _zeros(*tangents: Any, type_: ArrayType, **whose: Any) -> Any:
    return jnp.zeros(type_.shape, type_.dtype)


def _constant_jvp(
    operands: Any, tangents: Any, *, type_: ArrayType, **whose: Any
) -> tuple[Any, Any]:
    moving = [tangent for tangent in tangents if _is_nonzero(tangent)]
    return _zeros(type_=type_), _constant_p.bind(*moving, type_=type_, **whose)


# --- Batching.


def _batching_rule(operands: Any, axes: Any, *, call: Call) -> tuple[list[Any], list[int]]:
    """All results come back with the batch axis in front."""
    if call.site.options.vmap_method is None:
        raise CapabilityError(
            f"{call.site.target.name} is called with `vmap_method=None`, which forbids `vmap` (and "
            'Jacobians, which are batches of products). Use `vmap_method="auto"`.',
            code="vmap_forbidden",
        )
    mapped = [axis is not None for axis in axes]
    size = next(
        operand.shape[axis]
        for operand, axis in zip(operands, axes, strict=True)
        if axis is not None
    )
    fronted = [
        operand if axis is None else jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands, axes, strict=True)
    ]
    if _jacobian_pays(call, mapped, size):
        results = _multiply_jacobian(call, fronted, mapped, size)
    else:
        results = _bind_native(call, fronted, mapped, size) or _bind(
            call.batched(size, mapped), fronted
        )
    batched = [operand for operand, has in zip(fronted, mapped, strict=True) if has]
    return divided_alike(results, batched), [0] * len(results)


def _bind_native(
    call: Call, operands: list[Any], mapped: list[bool], size: int
) -> list[Any] | None:
    """One call with the batch axis in front of every array; `None` if the target does not take it."""
    # A function need not know what to do with an empty batch.
    if size == 0 or call.batch.sizes or not _is_native(call.site, call.request):
        return None
    only_apply = call.request.name == "apply" and call.site.options.vmap_method == "expand_dims"
    leading = [size if has or not only_apply else 1 for has in mapped]
    site = batched_site(call.site, size, leading[: len(call.site.inputs)])
    if site is None:
        return None
    lifted = [
        operand if has else jnp.broadcast_to(operand, (lead, *operand.shape))
        for operand, has, lead in zip(operands, mapped, leading, strict=True)
    ]
    return _bind(replace(call, site=site), lifted)


def _is_native(site: Site, request: Request) -> bool:
    """Whether a request may be answered by one call with one more leading axis."""
    if request.name not in ("apply", "jvp", "vjp"):
        return False
    if site.options.vmap_method in ("expand_dims", "broadcast_all"):
        return True
    if site.options.vmap_method not in DECLARED:
        return False
    if site.target.batching == "leading":
        return site.example is None  # one axis was promised, not two
    # Broadcasting aligns axes from the right: arrays of different ranks would meet at the wrong ones.
    same_rank = len({len(port.type.shape) for port in site.inputs}) == 1
    return site.target.batching == "elementwise" and same_rank


def _jacobian_pays(call: Call, mapped: list[bool], size: int) -> bool:
    """Whether a batch of this size, of vectors only, is better answered by the Jacobian."""
    request, site = call.request, call.site
    wish = site.options.materialize_jacobian
    if wish is False or request.name not in ("jvp", "vjp") or any(mapped[: len(site.inputs)]):
        return False
    types = (*request.result.types(site), *request.slots[0].types(site))
    # A derivative that is not linear over the complex numbers has no complex Jacobian.
    has_complex = any(type_.dtype.kind == "c" for type_ in types)
    if JACOBIAN.endpoint not in site.target.endpoints or has_complex:
        return False
    # A Jacobian costs about as many products as the smaller of its two sides.
    enough = size >= min(request.result.size(site), request.slots[0].size(site))
    return bool(wish) or enough


def _multiply_jacobian(call: Call, operands: list[Any], mapped: list[bool], size: int) -> list[Any]:
    """The results of `size` products, from one Jacobian for each example of the call's own batch."""
    site, result, sizes = call.site, call.request.result, call.batch.sizes
    primals, (vectors,) = call.open(operands)
    is_forward = result.side == "outputs"
    rows, columns = (result, vectors.space) if is_forward else (vectors.space, result)
    matrix = _jacobian_matrix(call, primals, rows, columns)
    stacked = _stack_vectors(call, vectors, mapped[len(site.inputs) :], size)
    dtype = _common_dtype([matrix.dtype, stacked.dtype])
    # For every example e and every vector b of the batch: y_o = Σ_i J_oi v_i, or x_i = Σ_o J_oi u_o, which is
    # Jᵀ u without conjugation. (Complex numbers do not come here: see `_jacobian_pays`.)
    product = jnp.einsum(
        "eoi,bei->beo" if is_forward else "eoi,beo->bei",
        matrix.astype(dtype),
        stacked.astype(dtype),
        # The default on GPUs and TPUs multiplies in fewer bits; a product that the component computes does
        # not lose them.
        precision=jax.lax.Precision.HIGHEST,
    )
    types = result.types(site)
    parts = jnp.split(product, np.cumsum([type_.size for type_ in types])[:-1], axis=-1)
    return [
        part.reshape((size, *sizes, *type_.shape)).astype(type_.dtype)
        for part, type_ in zip(parts, types, strict=True)
    ]


def _jacobian_matrix(call: Call, primals: Vectors, rows: Space, columns: Space) -> Any:
    """All blocks as one array [examples, output elements, input elements]."""
    examples = math.prod(call.batch.sizes)
    blocks = iter(_bind(*Call.make(call.site, call.batch.sizes, primals, [], rows, columns)))
    grid = [
        [
            next(blocks).reshape((examples, row.size, column.size))
            for column in columns.types(call.site)
        ]
        for row in rows.types(call.site)
    ]
    dtype = _common_dtype([block.dtype for line in grid for block in line])
    lines = [jnp.concatenate([block.astype(dtype) for block in line], axis=2) for line in grid]
    return jnp.concatenate(lines, axis=1)


def _stack_vectors(call: Call, vectors: Vectors, mapped: list[bool], size: int) -> Any:
    """All vectors as one array [batch, examples, elements], whichever axes each of them has."""
    sizes = (size, *call.batch.sizes)
    dtype = _common_dtype([value.dtype for value in vectors.values])
    flat = []
    for value, is_mapped, axes in zip(vectors.values, mapped, vectors.mapped, strict=True):
        has = (is_mapped, *axes)
        present = iter(value.shape[: sum(has)])
        spread = tuple(next(present) if each else 1 for each in has)
        shape = value.shape[sum(has) :]
        full = jnp.broadcast_to(value.reshape((*spread, *shape)), (*sizes, *shape))
        flat.append(full.reshape((size, math.prod(sizes[1:]), math.prod(shape))).astype(dtype))
    return jnp.concatenate(flat, axis=2)


def _common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Of arrays that are put side by side. float16 and bfloat16 meet in float32, which NumPy does not say."""
    try:
        return np.result_type(*dtypes)
    except TypeError:
        return np.result_type(np.float32, *(dtype for dtype in dtypes if dtype.itemsize > 2))


host_call_p.def_impl(_implement)
host_call_p.def_effectful_abstract_eval(_evaluate_abstractly)
ad.primitive_jvps[host_call_p] = _jvp_rule
ad.primitive_transposes[host_call_p] = _transpose_rule
batching.primitive_batchers[host_call_p] = _batching_rule
register_call(host_call_p, _lower)
see_nans(host_call_p)
register_outside_call(host_call_p, _describe)

_constant_p.def_abstract_eval(
    lambda *tangents, type_, **whose: array_aval(type_.shape, type_.dtype, tangents)
)
_constant_p.def_impl(_zeros)
ad.primitive_jvps[_constant_p] = _constant_jvp
ad.primitive_transposes[_constant_p] = _transpose_constant
batching.primitive_batchers[_constant_p] = _batch_constant
mlir.register_lowering(_constant_p, mlir.lower_fun(_zeros, multiple_results=False))
