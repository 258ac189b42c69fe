"""What an array field declares, as one frozen value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Integral
from types import EllipsisType
from typing import Any

from chainrule._errors import DefinitionError
from chainrule.runtime._schema._dtypes import ALL_DTYPES, describe_type
from chainrule.runtime._schema._units import check_units


@dataclass(frozen=True)
class ArraySpec:
    """The declaration of one array.

    Attributes:
        shape: fixed sizes, `None` where a size is open; `None` as a whole when any rank will do.
        dtype: name of the dtype; `None` when any will do.
        differentiable: whether derivatives with respect to (or of) it may be asked for.
        dimension_names: one per dimension, `None` where a dimension has no name; empty when none has.
        units: physical units that the author's code sees, in pint's notation; `None` for a bare number.
    """

    shape: tuple[int | None, ...] | None
    dtype: str | None
    differentiable: bool = False
    dimension_names: tuple[str | None, ...] = ()
    units: str | None = None

    def __str__(self) -> str:
        shape = self.shape if self.shape is None else self.labelled_shape
        return describe_type(shape, self.dtype) + (f" {self.units}" if self.units else "")

    @property
    def labelled_shape(self) -> tuple[int | str | None, ...]:
        """The shape as it was written, names included."""
        if not self.dimension_names:
            return self.shape or ()
        pairs = zip(self.shape or (), self.dimension_names, strict=True)
        return tuple(size if name is None else name for size, name in pairs)

    def with_differentiable(self) -> ArraySpec:
        """The same array, marked differentiable."""
        return replace(self, differentiable=True)

    def merge(self, other: ArraySpec) -> ArraySpec:
        """The narrowest declaration that covers both: what a union of two arrays at one path is."""
        if self == other:
            return self
        same_rank = None not in (self.shape, other.shape) and len(self.shape or ()) == len(
            other.shape or ()
        )
        return ArraySpec(
            shape=_common(self.shape or (), other.shape or ()) if same_rank else None,
            dtype=self.dtype if self.dtype == other.dtype else None,
            differentiable=self.differentiable or other.differentiable,
            dimension_names=(
                self.dimension_names if self.dimension_names == other.dimension_names else ()
            ),
            units=self.units if self.units == other.units else None,
        )


def _common(left: Iterable[int | None], right: Iterable[int | None]) -> tuple[int | None, ...]:
    return tuple(a if a == b else None for a, b in zip(left, right, strict=True))


def make_spec(shape: Any, dtype: Any, units: str | None = None) -> ArraySpec:
    """The declaration that `Array[shape, dtype, units]` stands for.

    Raises:
        DefinitionError: a shape, dtype or unit that cannot be declared.
    """
    sizes, names = _parse_shape(shape)
    if units is not None:
        check_units(units)
    return ArraySpec(sizes, _parse_dtype(dtype), dimension_names=names, units=units)


def _parse_shape(shape: Any) -> tuple[tuple[int | None, ...] | None, tuple[str | None, ...]]:
    if isinstance(shape, EllipsisType):
        return None, ()
    if not isinstance(shape, tuple) or not all(_is_dimension(d) for d in shape):
        raise DefinitionError(
            f"Cannot declare an array of shape {shape!r}: a shape is a tuple whose entries are sizes "
            "(3), names of sizes ('n') or None, or it is `...` for any rank. "
            "Write for example Array[('n', 3), Float64].",
            code="bad_array_type",
        )
    names = tuple(d if isinstance(d, str) else None for d in shape)
    sizes = tuple(None if d is None or isinstance(d, str) else int(d) for d in shape)
    return sizes, names if any(names) else ()


def _is_dimension(entry: Any) -> bool:
    if isinstance(entry, str):
        return entry.isidentifier()
    is_integer = isinstance(entry, Integral) and not isinstance(entry, bool)
    return entry is None or (is_integer and entry >= 0)


def _parse_dtype(dtype: Any) -> str | None:
    spec = getattr(dtype, "spec", None)
    if isinstance(spec, ArraySpec):
        return spec.dtype
    if dtype is None or (isinstance(dtype, str) and dtype in ALL_DTYPES):
        return dtype
    raise DefinitionError(
        f"Cannot declare an array of dtype {dtype!r}: use a type such as Float64, None for any dtype, "
        f"or one of the names {', '.join(ALL_DTYPES)}.",
        code="bad_array_type",
    )
