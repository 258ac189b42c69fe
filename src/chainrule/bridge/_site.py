"""A call site: one target at one signature, flattened.

A *signature* is everything about the inputs but the numbers in their arrays: the tree, the paths, shapes and
dtypes of the arrays, and the static leaves. To everything above, a site is a flat function from arrays to
arrays; positions in `inputs` and `outputs` are how requests name them.

Invariant: sites are compared by identity and there is one per target, options and signature (as long as it is
in use), so that equal calls are equal equations, which XLA merges.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from chainrule._device import cast, dtype_of, is_on_device
from chainrule._errors import CapabilityError, ChainruleError, ComponentError, InputError
from chainrule.bridge._target import Options, Target
from chainrule.bridge._types import (
    ArrayType,
    Skeleton,
    dtype_to_send,
    is_inexact,
    take_apart,
    types_of,
)

Canonicalize = Callable[[np.dtype[Any]], np.dtype[Any]]
"""The dtype in which a framework holds arrays of some dtype (JAX without x64 has no float64)."""


@dataclass(frozen=True)
class Port:
    """One array that goes in or comes out.

    Attributes:
        path: where it is in the tree.
        type: what the caller's framework sees.
        differentiable: whether it can carry derivatives: declared so, and of a floating dtype.
        wire_dtype: what the target wants to see, when that differs.
    """

    path: str
    type: ArrayType
    differentiable: bool
    wire_dtype: np.dtype[Any] | None = None

    def to_wire(self, array: Any) -> Any:
        """An array, tangent or cotangent in the dtype that the target wants."""
        return array if self.wire_dtype is None else cast(array, self.wire_dtype)


@dataclass(frozen=True, eq=False)
class Site:
    """One target at one signature; see the module's docstring.

    Attributes:
        example: for a site with a batch axis in front of every array: the site of one example.
        batched: such sites of this one, by their leading sizes.
        host_functions: what compiled programs call, by request and batch.
    """

    target: Target
    options: Options
    input_skeleton: Skeleton
    output_skeleton: Skeleton
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    canonicalize: Canonicalize
    example: Site | None = None
    batched: dict[tuple[int, ...], Site | None] = field(default_factory=dict)
    host_functions: dict[Hashable, Any] = field(default_factory=dict)

    def build_inputs(self, arrays: Sequence[np.ndarray]) -> Any:
        """The tree that the target gets."""
        if self._converts_inputs:
            arrays = [port.to_wire(array) for array, port in zip(arrays, self.inputs, strict=True)]
        return self.input_skeleton.build(arrays)

    @cached_property
    def _converts_inputs(self) -> bool:
        return any(port.wire_dtype is not None for port in self.inputs)


def find_site(
    target: Target,
    options: Options,
    skeleton: Skeleton,
    types: Sequence[ArrayType],
    canonicalize: Canonicalize,
) -> Site:
    """The site of a signature; the target is asked for the outputs' types once per signature."""
    # A float64 output is another type when the framework's widest dtype changes.
    key = skeleton.signature(options, tuple(types), canonicalize(np.dtype(np.float64)))
    make = partial(_make_site, target, options, skeleton, types, canonicalize)
    return target.remembered("sites", key, make)


def _make_site(
    target: Target,
    options: Options,
    skeleton: Skeleton,
    types: Sequence[ArrayType],
    canonicalize: Canonicalize,
) -> Site:
    """A new site; asks the target for the types of its outputs."""
    _check_distinct(target, "inputs", skeleton)
    pairs = zip(skeleton.paths, types, strict=True)
    inputs = tuple(_input_port(target, path, type_) for path, type_ in pairs)
    wanted = [ArrayType(p.type.shape, p.wire_dtype or p.type.dtype) for p in inputs]
    outcome = _evaluate_abstractly(target, options, skeleton, wanted)
    output_skeleton, leaves = take_apart(outcome, lambda path, leaf: _flows(leaf))
    _check_distinct(target, "outputs", output_skeleton)
    outputs = tuple(
        _output_port(target, path, leaf, canonicalize)
        for path, leaf in zip(output_skeleton.paths, leaves, strict=True)
    )
    return Site(target, options, skeleton, output_skeleton, inputs, outputs, canonicalize)


def batched_site(site: Site, size: int, leading: Sequence[int]) -> Site | None:
    """The site with `leading[i]` in front of input `i`; `None` if the target cannot be called so.

    A schema that fixes ranks, or outputs that do not all gain the axis, mean that it cannot.
    """
    key = (size, *leading)
    if key not in site.batched:
        site.batched[key] = _make_batched(site, size, leading)
    return site.batched[key]


def broadcast_site(site: Site) -> Site:
    """The site in which every input has the whole batch in front, also those with a 1 there.

    Derivatives are asked of it: an endpoint that treats leading axes as batch axes does not sum over them.
    """
    if site.example is None or not site.outputs:
        return site
    inner = broadcast_site(site.example)
    size = site.outputs[0].type.shape[0]
    return batched_site(inner, size, [size] * len(site.inputs)) or site


def _make_batched(site: Site, size: int, leading: Sequence[int]) -> Site | None:
    ports = zip(site.inputs, leading, strict=True)
    types = [port.type.with_leading(lead) for port, lead in ports]
    try:
        found = _make_site(site.target, site.options, site.input_skeleton, types, site.canonicalize)
    except ChainruleError:
        return None
    expected = [port.type.with_leading(size) for port in site.outputs]
    return replace(found, example=site) if [p.type for p in found.outputs] == expected else None


def _check_distinct(target: Target, side: str, skeleton: Skeleton) -> None:
    """Check that no two arrays have one path, by which derivatives name them: there all keys are strings."""
    for path in skeleton.paths if len(set(skeleton.paths)) < len(skeleton.paths) else ():
        if skeleton.paths.count(path) > 1:
            raise InputError(
                f"Two of the {side} of {target.name} are at `{path}`: a dictionary has a string as a key, "
                "and another key that is written in the same way. Rename one of them.",
                code="ambiguous_path",
                path=path,
            )


def _input_port(target: Target, path: str, type_: ArrayType) -> Port:
    sent = dtype_to_send(type_.dtype, target.input_dtype(path))
    differentiable = is_inexact(type_.dtype) and target.is_differentiable_input(path)
    return Port(path, type_, differentiable, None if sent == type_.dtype else sent)


def _output_port(target: Target, path: str, leaf: Any, canonicalize: Canonicalize) -> Port:
    given = leaf if isinstance(leaf, ArrayType) else ArrayType((), np.asarray(leaf).dtype)
    held = ArrayType(given.shape, canonicalize(given.dtype))
    differentiable = is_inexact(held.dtype) and target.is_differentiable_output(path)
    return Port(path, held, differentiable, None if held == given else given.dtype)


def _flows(leaf: Any) -> bool:
    """Whether an abstract output stands for a value: an array, or a plain number, not known yet."""
    return isinstance(leaf, (ArrayType, bool, int, float, complex))


def _evaluate_abstractly(
    target: Target, options: Options, skeleton: Skeleton, types: Sequence[ArrayType]
) -> Any:
    """The output tree with types for arrays: asked of the target, or seen in one real evaluation."""
    if "abstract_eval" in target.endpoints:
        return target.abstract_eval(skeleton.build(types))
    if options.infer_by_evaluation:
        # Ones: the value for which the fewest functions are undefined (a logarithm, a quotient, a root).
        ones = [np.ones(type_.shape, type_.dtype) for type_ in types]
        return types_of(target.apply(skeleton.build(ones)))
    listed = ", ".join(f"`{p}` {t}" for p, t in zip(skeleton.paths, types, strict=True))
    raise CapabilityError(
        f"{target.name} has no `abstract_eval`, so the shapes of its outputs for {listed} are not known "
        f"before it runs, and a transformation has to know them. {target.abstract_advice}",
        code="no_abstract_eval",
    )


def check_result(value: Any, port: Port, type_: ArrayType, request: Any, target: Target) -> Any:
    """A result of the target as an array of the promised shape, on the host or on a GPU.

    Raises:
        ComponentError: it has another shape, or a kind of number that cannot be converted.
    """
    if isinstance(value, np.ndarray) and value.shape == type_.shape and value.dtype == type_.dtype:
        return value
    array = value if is_on_device(value) else np.asarray(value)
    found = dtype_of(array)
    if array.shape == type_.shape and (found == type_.dtype or _converts(found, type_.dtype)):
        return array
    raise ComponentError(
        f"`{request.name}` of {target.name} returned {_describe(value, tuple(array.shape), found)}"
        f"{f' at `{port.path}`' if port.path else ''} where {type_} was promised. {_advice(value, request)}",
        code="result_mismatch",
        path=port.path,
    )


def _describe(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    is_numeric = is_inexact(dtype) or dtype.kind in "biu"
    return str(ArrayType(shape, dtype)) if is_numeric else f"a {type(value).__name__}"


def _advice(value: Any, request: Any) -> str:
    if value is None and request.name != "apply":
        return "Return zeros for a derivative that is zero."
    return "Make the endpoint and `abstract_eval` agree."


def _converts(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    if np.can_cast(found, wanted, "same_kind"):
        return True
    # NumPy has no casting rules between the extension floats (bfloat16, …) and its own.
    return is_inexact(found) and is_inexact(wanted) and "c" not in (found.kind, wanted.kind)
