"""Convolutions: every tap of the kernel moves the signal by a fixed amount and scales it.

    y[b, o, p] = Σ_{i, k} x[b, i, p·stride + k·dilation - padding] · w[o, i, k]

With respect to the signal there is one offset diagonal per tap k, dense in the channels, with w[:, :, k] on
it; what would be read from the padding is left out. With respect to the kernel the partials are the patches
of the signal, diagonal in the output channel. Both hold for any number of spatial axes. Long kernels, grouped
channels and gaps in the signal take the conservative road.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from chainrule.elimination._rules._equation import (
    Edge,
    Equation,
    LocalJacobian,
    Rule,
    term_structure,
    transposition,
)
from chainrule.elimination._rules._fallback import fallback
from chainrule.elimination._structure import Axis, Structure, Term, structure_of

_MAX_TAPS = 32
"""Every tap is a term of its own; a dense block is cheaper to plan than very many."""

_BATCH, _OUT, _IN = 0, 1, 2
"""The loops of a convolution: over the batch, output channels, input channels, then spatial ones."""

Tap = tuple[int, ...]


class _Geometry(NamedTuple):
    """A convolution without gaps or groups, by its axes: batch or channels first, then spatial ones.

    Attributes:
        signal: the axes of batch, input channel and space in the signal.
        kernel: the axes of output channel, input channel and space in the kernel.
        result: the axes of batch, output channel and space in the result.
        strides: from one result to the next, in the signal.
        dilations: from one tap to the next, in the signal.
        margins: padding (low, high) per spatial axis.
    """

    signal: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    margins: tuple[tuple[int, int], ...]


def _read(equation: Equation) -> tuple[_Geometry, list[Tap]] | None:
    """The geometry and all taps, if the rules below cover this convolution."""
    params = equation.eqn.params
    numbers = params["dimension_numbers"]
    is_grouped = params["feature_group_count"] != 1 or params["batch_group_count"] != 1
    lengths = [equation.operand_shape(1)[axis] for axis in numbers.rhs_spec[2:]]
    has_gaps = any(step != 1 for step in params["lhs_dilation"])
    if is_grouped or has_gaps or not 0 < math.prod(lengths) <= _MAX_TAPS:
        return None
    geometry = _Geometry(
        signal=tuple(numbers.lhs_spec),
        kernel=tuple(numbers.rhs_spec),
        result=tuple(numbers.out_spec),
        strides=tuple(map(int, params["window_strides"])),
        dilations=tuple(map(int, params["rhs_dilation"])),
        margins=tuple((int(low), int(high)) for low, high in params["padding"]),
    )
    return geometry, list(itertools.product(*map(range, lengths)))


def _convolution(equation: Equation) -> LocalJacobian:
    found = _read(equation)
    if found is None:
        return fallback(equation)
    geometry, taps = found
    structures: dict[Edge, Structure] = {}
    signal = _signal_edge(equation, geometry, taps) if equation.wanted[0] else None
    if signal is not None:
        structures[0, 0] = signal[0]
    kernel = _kernel_edge(equation, geometry) if equation.wanted[1] else None
    if kernel is not None:
        structures[0, 1] = kernel[0]

    def evaluate(operands: Sequence[Any], results: Sequence[Any]) -> dict[Edge, tuple[Any, ...]]:
        x, w = (operand.astype(results[0].dtype) for operand in operands)
        values: dict[Edge, tuple[Any, ...]] = {}
        if signal is not None:
            by_tap = w.transpose([*geometry.kernel[2:], *geometry.kernel[:2]])
            values[0, 0] = tuple(
                by_tap[tap].reshape(term.stored_shape) if term.valued else None
                for term, tap in zip(signal[0].terms, signal[1], strict=True)
            )
        if kernel is not None:
            shape = kernel[0].terms[0].stored_shape
            values[0, 1] = (
                _patches(x, geometry, taps, equation).transpose(kernel[1]).reshape(shape),
            )
        return values

    return LocalJacobian(structures, evaluate)


def _arranged(axes: Sequence[int], loops: Sequence[Axis]) -> list[Axis]:
    """Loops by meaning, in the order of an array's axes."""
    return [loops[axes.index(axis)] for axis in range(len(axes))]


def _signal_edge(
    equation: Equation, geometry: _Geometry, taps: Sequence[Tap]
) -> tuple[Structure, list[Tap]] | None:
    """One term per tap that reads anything, and these taps."""
    channels = tuple(equation.operand_shape(1)[axis] for axis in geometry.kernel[:2])
    batch = equation.operand_shape(0)[geometry.signal[0]]
    known = equation.known(1) if channels == (1, 1) else None
    terms: list[Term] = []
    read: list[Tap] = []
    for tap in taps:
        coefficient = 1.0 if known is None else float(np.asarray(known)[_at(tap, geometry)])
        reach = [_reach(equation, geometry, d, k) for d, k in enumerate(tap)]
        results = [Axis.of(3 + d, offset=places.start) for d, places in enumerate(reach)]
        sources = [_source(geometry, d, k, reach[d].start) for d, k in enumerate(tap)]
        found = term_structure(
            equation.result_shape(),
            equation.operand_shape(0),
            [batch, *channels, *map(len, reach)],
            _arranged(geometry.result, [Axis.of(_BATCH), Axis.of(_OUT), *results]),
            _arranged(geometry.signal, [Axis.of(_BATCH), Axis.of(_IN), *sources]),
            stored=[_OUT, _IN] if known is None else None,
            coefficient=coefficient,
        )
        if found is not None and coefficient != 0:
            terms += found[0].terms
            read.append(tap)
    return (structure_of(terms), read) if terms else None


def _at(tap: Tap, geometry: _Geometry) -> tuple[int, ...]:
    """Where a kernel of one channel holds a tap."""
    place = [0] * len(geometry.kernel)
    for axis, k in zip(geometry.kernel[2:], tap, strict=True):
        place[axis] = k
    return tuple(place)


def _reach(equation: Equation, geometry: _Geometry, d: int, k: int) -> range:
    """The results along a spatial axis for which a tap reads the signal, and not the padding.

    These are the p with 0 ≤ p·stride + shift < length: from ⌈-shift / stride⌉ to ⌊(length - 1 - shift) /
    stride⌋, where -(shift // stride) is ⌈-shift / stride⌉.
    """
    length = equation.operand_shape(0)[geometry.signal[2 + d]]
    count = equation.result_shape()[geometry.result[2 + d]]
    shift, stride = k * geometry.dilations[d] - geometry.margins[d][0], geometry.strides[d]
    first = max(0, -(shift // stride))
    return range(first, max(first, min(count, (length - 1 - shift) // stride + 1)))


def _source(geometry: _Geometry, d: int, k: int, start: int) -> Axis:
    """What a tap reads along a spatial axis, for results from `start` on."""
    stride = geometry.strides[d]
    shift = k * geometry.dilations[d] - geometry.margins[d][0]
    return Axis.of(3 + d, offset=start * stride + shift, stride=stride)


def _kernel_edge(equation: Equation, geometry: _Geometry) -> tuple[Structure, list[int]] | None:
    """One term with the patches on it, and how to transpose those (batch, input channel, space, taps)."""
    # ∂y[b, o, p]/∂w[o', i, k] = [o = o'] x[b, i, p·stride + k·dilation - padding]: what tap k reads for
    # result p.
    rank = len(geometry.strides)
    counts = [equation.result_shape()[axis] for axis in geometry.result[2:]]
    lengths = [equation.operand_shape(1)[axis] for axis in geometry.kernel[2:]]
    channels = [equation.operand_shape(1)[axis] for axis in geometry.kernel[:2]]
    batch = equation.operand_shape(0)[geometry.signal[0]]
    places = [Axis.of(3 + d) for d in range(rank)]
    taps = [Axis.of(3 + rank + d) for d in range(rank)]
    held = [_BATCH, _IN, *range(3, 3 + 2 * rank)]
    found = term_structure(
        equation.result_shape(),
        equation.operand_shape(1),
        [batch, *channels, *counts, *lengths],
        _arranged(geometry.result, [Axis.of(_BATCH), Axis.of(_OUT), *places]),
        _arranged(geometry.kernel, [Axis.of(_OUT), Axis.of(_IN), *taps]),
        stored=held,
    )
    if found is None:
        return None
    structure, order = found
    return structure, transposition(held, order)


def _patches(x: Any, geometry: _Geometry, taps: Sequence[Tap], equation: Equation) -> Any:
    """What every tap reads for every result: axes batch, input channel, space, taps."""
    x = x.transpose(geometry.signal)
    x = lax.pad(
        x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *((*m, 0) for m in geometry.margins)]
    )
    counts = [equation.result_shape()[axis] for axis in geometry.result[2:]]
    read = []
    for tap in taps:
        starts = [k * step for k, step in zip(tap, geometry.dilations, strict=True)]
        steps = zip(starts, counts, geometry.strides, strict=True)
        window = [slice(start, start + (n - 1) * stride + 1, stride) for start, n, stride in steps]
        read.append(x[(slice(None), slice(None), *window)])
    lengths = [equation.operand_shape(1)[axis] for axis in geometry.kernel[2:]]
    return jnp.stack(read, axis=-1).reshape((*read[0].shape, *lengths))


CONVOLUTION_RULES: dict[str, Rule] = {"conv_general_dilated": _convolution}
