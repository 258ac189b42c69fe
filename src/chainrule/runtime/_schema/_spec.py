"""What an array field declares: a shape, a dtype, units and bounds, as one frozen `ArraySpec`.

`bfloat16` is not NumPy's own; its package `ml_dtypes` is imported only when a field or a value has it.
Units are read by `pint` when it is installed. Without it they are labels: the same text passes, and any other
text is refused.

Pydantic compares a whole value with the bound of `Field(ge=0, lt=1)`, which has no meaning for an array. So
components take the bounds out of a field and put them into the declaration of its array (`bounded` in
`_leaves`), where the validator, finite differences, the JSON schema and every optimiser read them from one
place. JSON schema has words of its own for bounds (`minimum`, `exclusiveMinimum`, …), which stand beside the
array in a component's document. Pydantic's words (`ge`, `gt`, …) are read as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from numbers import Integral, Real
from types import EllipsisType
from typing import Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from chainrule._codec import dtype_from_name, dtype_generality
from chainrule._describe import describe_type
from chainrule._errors import DefinitionError

_JSON_WORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
_METADATA: dict[type, str] = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
_COMPARISONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "ge": ("≥", np.greater_equal),
    "gt": (">", np.greater),
    "le": ("≤", np.less_equal),
    "lt": ("<", np.less),
}


@dataclass(frozen=True)
class Bounds:
    """Bounds that hold for every element, in the units of the field.

    Attributes:
        ge: the smallest value that is allowed.
        gt: values have to be greater than this.
        le: the largest value that is allowed.
        lt: values have to be less than this.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def __str__(self) -> str:
        return ", ".join(f"{_COMPARISONS[name][0]} {bound}" for name, bound in self.given.items())

    @cached_property
    def given(self) -> Mapping[str, float]:
        """The bounds that there are, by pydantic's words."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: bound for name, bound in found.items() if bound is not None}

    @property
    def lower(self) -> float:
        """The lower limit, allowed or not; −∞ without one."""
        return max((b for b in (self.ge, self.gt) if b is not None), default=-math.inf)

    @property
    def upper(self) -> float:
        """The upper limit, allowed or not; ∞ without one."""
        return min((b for b in (self.le, self.lt) if b is not None), default=math.inf)

    def smallest(self, dtype: str) -> float:
        """The smallest value of a dtype that is allowed; −∞ without a lower bound."""
        if self.gt is None or (self.ge is not None and self.ge > self.gt):
            return -math.inf if self.ge is None else float(self.ge)
        return _next(self.gt, dtype, 1)

    def largest(self, dtype: str) -> float:
        """The largest value of a dtype that is allowed; ∞ without an upper bound."""
        if self.lt is None or (self.le is not None and self.le < self.lt):
            return math.inf if self.le is None else float(self.le)
        return _next(self.lt, dtype, -1)

    def allowed(self, values: np.ndarray) -> np.ndarray:
        """Which elements are within the bounds; those that are not numbers (NaN) are not."""
        inside = np.ones(values.shape, bool)
        for name, bound in self.given.items():
            inside &= _COMPARISONS[name][1](values, bound)
        return inside

    def first_violation(self, array: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
        """The word of the first bound that does not hold, and the index of the first such element."""
        for name, bound in self.given.items():
            holds = _COMPARISONS[name][1](array, bound)
            if not holds.all():
                index = np.unravel_index(int(np.argmin(holds)), np.shape(array))
                return name, tuple(map(int, index))
        return None

    def json_schema(self) -> dict[str, float]:
        """The bounds in the words of JSON schema."""
        return {_JSON_WORDS[name]: bound for name, bound in self.given.items()}

    @classmethod
    def from_json_schema(cls, node: Mapping[str, Any]) -> Bounds | None:
        """The bounds beside an array in a JSON schema, in its words or in pydantic's."""
        found = {
            name: node.get(word, node.get(name))
            for name, word in _JSON_WORDS.items()
            if isinstance(node.get(word, node.get(name)), Real)
        }
        return cls(**found) if found else None

    @classmethod
    def from_metadata(cls, metadata: Iterable[Any]) -> tuple[Bounds | None, list[Any]]:
        """The bounds among the metadata of a field (`annotated_types`), and the metadata that is left.

        Raises:
            DefinitionError: a bound is not a number (`bad_array_type`).
        """
        found: dict[str, Any] = {}
        rest = []
        for entry in metadata:
            name = _METADATA.get(type(entry))
            if name is None:
                rest.append(entry)
            else:
                found[name] = _number(name, getattr(entry, name))
        return (cls(**found) if found else None), rest


def _next(bound: float, dtype: str, direction: int) -> float:
    """The number of a dtype beside a bound."""
    if dtype in ("float16", "float32"):
        kind = np.dtype(dtype).type
        return float(np.nextafter(kind(bound), kind(direction * math.inf)))
    return math.nextafter(bound, direction * math.inf) if "float" in dtype else bound + direction


def _number(name: str, bound: Any) -> Any:
    if isinstance(bound, Real) and not math.isnan(bound):
        return bound
    raise DefinitionError(
        f"Expected the bound {name} of an array to be a number that holds for every element; found "
        f"{bound!r}. Check other rules in a validator of the schema.",
        code="bad_array_type",
    )


@dataclass(frozen=True)
class ArraySpec:
    """The declaration of one array.

    Attributes:
        shape: fixed sizes, `None` where a size is open; `None` as a whole when any rank will do.
        dtype: name of the dtype; `None` when any will do.
        differentiable: whether derivatives with respect to (or of) it may be asked for.
        dimension_names: one per dimension, `None` where a dimension has no name; empty when none has.
        units: physical units that the author's code sees, in pint's notation; `None` for a bare number.
        bounds: that every element keeps; `None` without any.
    """

    shape: tuple[int | None, ...] | None
    dtype: str | None
    differentiable: bool = False
    dimension_names: tuple[str | None, ...] = ()
    units: str | None = None
    bounds: Bounds | None = None

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
            bounds=self.bounds if self.bounds == other.bounds else None,
        )


def _common(left: Iterable[int | None], right: Iterable[int | None]) -> tuple[int | None, ...]:
    return tuple(a if a == b else None for a, b in zip(left, right, strict=True))


def make_spec(shape: Any, dtype: Any, *more: Any) -> ArraySpec:
    """The declaration that `Array[shape, dtype, units, bounds]` stands for; units or bounds may be left out.

    Raises:
        DefinitionError: a shape, dtype or unit that cannot be declared.
    """
    sizes, names = _parse_shape(shape)
    kind = _parse_dtype(dtype)
    of_bounds = [each for each in more if isinstance(each, Bounds)]
    of_units = [each for each in more if not isinstance(each, Bounds)]
    if len(of_bounds) > 1 or len(of_units) > 1:
        raise DefinitionError(
            f"Expected units and bounds once each after the shape and the dtype; found {more!r}.",
            code="bad_array_type",
        )
    bounds = of_bounds[0] if of_bounds else None
    units = of_units[0] if of_units else None
    if units is not None:
        check_units(units)
    if bounds is not None:
        check_bounds(kind, bounds)
    return ArraySpec(sizes, kind, dimension_names=names, units=units, bounds=bounds)


def check_bounds(dtype: str | None, bounds: Bounds) -> None:
    """Refuse bounds of numbers that have no order.

    Raises:
        DefinitionError: they are complex or boolean (`bad_array_type`).
    """
    if dtype is not None and numpy_dtype(dtype).kind in "bc":
        raise DefinitionError(
            f"An array of {dtype} has no order, so it cannot have the bounds {bounds}. Leave them out.",
            code="bad_array_type",
        )


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


@cache
def pint_registry() -> Any:
    """The application's pint registry, or `None` without pint."""
    try:
        import pint
    except ImportError:
        return None
    return pint.get_application_registry()


def check_units(units: Any) -> None:
    """Refuse units that pint cannot read, where the field is declared.

    Raises:
        DefinitionError: the units are not text, or pint is installed and does not know them.
    """
    registry = pint_registry()
    try:
        known = isinstance(units, str) and (registry is None or registry.Unit(units) is not None)
    except Exception:  # pint raises its own, tokenize's and the parser's errors, by kind of mistake
        known = False
    if not known:
        raise DefinitionError(
            f"Unknown units {units!r}: write them as pint does, for example 'm/s' or 'kg*m**2'.",
            code="unit_unknown",
        )


def known_units(units: str | None) -> str | None:
    """The units, if a field can have them; `None` otherwise: other tools have spellings of their own."""
    try:
        check_units(units)
    except DefinitionError:
        return None
    return units


# In the order in which Tesseract lists them in its JSON schemas.
PEER_DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool",
    "uint8", "uint16", "uint32", "uint64", "complex64", "complex128",
)  # fmt: skip
BFLOAT16 = "bfloat16"
ALL_DTYPES = (*PEER_DTYPES, BFLOAT16)


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype name.

    Raises:
        DefinitionError: `bfloat16` without the package `ml_dtypes`.
    """
    return dtype_from_name(name) if name == BFLOAT16 else np.dtype(name)


@cache
def canonical_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The one dtype of this name: in the machine's byte order, `int64` also where C says `long long`."""
    return numpy_dtype(dtype.name)


@cache
def generality(dtype: np.dtype[Any]) -> int | None:
    """bool 0, integers 1, floats 2, complex numbers 3; `None` when the dtype is not a number.

    A cast is allowed towards equal or greater generality; whether the values survive is another check.
    """
    return dtype_generality(dtype) if dtype.name in ALL_DTYPES else None


@cache
def castable_dtypes(name: str | None) -> tuple[str, ...]:
    """The dtype names that a field of this dtype accepts, in the order of `PEER_DTYPES`."""
    names = ALL_DTYPES if name == BFLOAT16 else PEER_DTYPES
    if name is None:
        return names
    limit = _generality_of_name(name)
    return tuple(other for other in names if _generality_of_name(other) <= limit)


def _generality_of_name(name: str) -> int:
    # NumPy knows the name `bfloat16` only once `ml_dtypes` is imported.
    return 2 if name == BFLOAT16 else dtype_generality(np.dtype(name))


def number_kind(dtype: np.dtype[Any]) -> str:
    """NumPy's letter for a kind of numbers (b, i, u, f, c); f also for bfloat16, which it does not know."""
    return "f" if dtype.name == BFLOAT16 else dtype.kind


def rounding_unit(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of this float or complex dtype."""
    return 2.0 ** (1 - mantissa_bits(dtype))


def mantissa_bits(dtype: np.dtype[Any]) -> int:
    """Integers up to `2**mantissa_bits` in magnitude are exact in this float or complex dtype."""
    return 8 if dtype.name == BFLOAT16 else int(np.finfo(dtype).nmant) + 1
