"""Which axes a primitive maps over: position k of the result depends on position k of the operands only.

Read by the conservative road, which keeps such axes diagonal. A primitive that is not listed here is
treated as if every result entry depended on every operand entry, which is right and slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chainrule._jaxpr import JaxprEqn


@dataclass(frozen=True)
class BatchAxes:
    """One axis that is mapped over: its place in every operand and result, `None` where it is absent."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]


def batch_axes(eqn: JaxprEqn) -> list[BatchAxes]:
    """The mapped axes of an equation."""
    reader = _READERS.get(eqn.primitive.name)
    return [] if reader is None else reader(eqn)


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _same_places(eqn: JaxprEqn, axes: list[int]) -> list[BatchAxes]:
    """The same axis everywhere, for operands and results of one common rank."""
    return [BatchAxes((axis,) * len(eqn.invars), (axis,) * len(eqn.outvars)) for axis in axes]


def _all_but(parameter: str) -> Callable[[JaxprEqn], list[BatchAxes]]:
    """Primitives that work along the axis or axes in a parameter, on operands of equal shape."""

    def read(eqn: JaxprEqn) -> list[BatchAxes]:
        worked = eqn.params[parameter]
        rank = len(_shape(eqn.invars[0]))
        worked = {d % rank for d in (worked if isinstance(worked, (tuple, list)) else (worked,))}
        return _same_places(eqn, [d for d in range(rank) if d not in worked])

    return read


def _leading(core_rank: int) -> Callable[[JaxprEqn], list[BatchAxes]]:
    """Linear algebra: leading axes are a batch, the last `core_rank` axes of the operand are worked on."""

    def read(eqn: JaxprEqn) -> list[BatchAxes]:
        n_batch = len(_shape(eqn.invars[0])) - core_rank
        return _same_places(eqn, list(range(n_batch)))

    return read


def _everywhere(eqn: JaxprEqn) -> list[BatchAxes]:
    """Elementwise primitives reach the conservative road with complex values."""
    out = _shape(eqn.outvars[0])
    found = []
    for axis, length in enumerate(out):
        places = []
        for atom in eqn.invars:
            own = axis - (len(out) - len(_shape(atom)))
            matches = own >= 0 and _shape(atom)[own] == length
            places.append(own if matches else None)
        found.append(BatchAxes(tuple(places), (axis,)))
    return found


def _reduction(eqn: JaxprEqn) -> list[BatchAxes]:
    rank = len(_shape(eqn.invars[0]))
    kept = [d for d in range(rank) if d not in eqn.params["axes"]]
    return [BatchAxes((d,), (k,)) for k, d in enumerate(kept)]


def _fft(eqn: JaxprEqn) -> list[BatchAxes]:
    return _same_places(
        eqn, list(range(len(_shape(eqn.invars[0])) - len(eqn.params["fft_lengths"])))
    )


def _convolution(eqn: JaxprEqn) -> list[BatchAxes]:
    numbers = eqn.params["dimension_numbers"]
    if eqn.params.get("batch_group_count", 1) != 1:
        return []
    return [BatchAxes((numbers.lhs_spec[0], None), (numbers.out_spec[0],))]


def _dynamic_slice(eqn: JaxprEqn) -> list[BatchAxes]:
    """Axes that are taken whole do not move: their start can only be 0."""
    operand, taken = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
    indices = (None,) * (len(eqn.invars) - 1)
    return [BatchAxes((d, *indices), (d,)) for d in range(len(operand)) if operand[d] == taken[d]]


def _dynamic_update_slice(eqn: JaxprEqn) -> list[BatchAxes]:
    operand, update = _shape(eqn.invars[0]), _shape(eqn.invars[1])
    indices = (None,) * (len(eqn.invars) - 2)
    return [
        BatchAxes((d, d, *indices), (d,)) for d in range(len(operand)) if operand[d] == update[d]
    ]


def _gather(eqn: JaxprEqn) -> list[BatchAxes]:
    """Window axes that are taken whole, and that no index moves."""
    numbers = eqn.params["dimension_numbers"]
    operand = _shape(eqn.invars[0])
    absent = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(operand)) if d not in absent]
    return [
        BatchAxes((d, None), (place,))
        for d, place in zip(window, numbers.offset_dims, strict=True)
        if eqn.params["slice_sizes"][d] == operand[d] and d not in numbers.start_index_map
    ]


def _scatter(eqn: JaxprEqn) -> list[BatchAxes]:
    numbers = eqn.params["dimension_numbers"]
    operand, update = _shape(eqn.invars[0]), _shape(eqn.invars[2])
    absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(operand)) if d not in absent]
    return [
        BatchAxes((d, None, place), (d,))
        for d, place in zip(window, numbers.update_window_dims, strict=True)
        if update[place] == operand[d] and d not in numbers.scatter_dims_to_operand_dims
    ]


_ELEMENTWISE = (
    "add", "sub", "mul", "div", "neg", "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "sqrt", "rsqrt", "abs", "sign", "pow", "integer_pow", "square", "expm1", "log1p",
    "logistic", "real", "imag", "conj", "complex", "convert_element_type", "copy", "copy_p", "add_any",
    "cbrt", "exp2", "max", "min", "select_n", "log2",
)  # fmt: skip

_READERS: dict[str, Callable[[JaxprEqn], list[BatchAxes]]] = {
    **dict.fromkeys(_ELEMENTWISE, _everywhere),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _all_but("axis")),
    "sort": _all_but("dimension"),
    **dict.fromkeys(("reduce_prod", "reduce_sum", "reduce_max", "reduce_min"), _reduction),
    **dict.fromkeys(("cholesky", "triangular_solve", "eigh", "lu", "qr", "svd", "schur"), _leading(2)),
    "fft": _fft,
    "conv_general_dilated": _convolution,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul",
                     "scatter-min", "scatter_min", "scatter-max", "scatter_max", "scatter-sub",
                     "scatter_sub"), _scatter),
}  # fmt: skip
