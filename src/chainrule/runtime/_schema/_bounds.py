"""Bounds of numbers: what `Field(ge=0, lt=1)` says about every element of an array.

Pydantic compares a whole value with a bound, which has no meaning for an array. So components take the bounds
out of a field and put them into the declaration of its array (`bounded` in `_leaves`), where the validator,
finite differences, the JSON schema and every optimiser read them from one place.

JSON schema has words of its own for bounds (`minimum`, `exclusiveMinimum`, …), which stand beside the array
in a component's document. Pydantic's words (`ge`, `gt`, …) are read as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

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
        return ", ".join(f"{_COMPARISONS[name][0]} {bound}" for name, bound in self.given().items())

    def given(self) -> dict[str, float]:
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
        for name, bound in self.given().items():
            inside &= _COMPARISONS[name][1](values, bound)
        return inside

    def first_violation(self, array: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
        """The word of the first bound that does not hold, and the index of the first such element."""
        for name, bound in self.given().items():
            holds = _COMPARISONS[name][1](array, bound)
            if not holds.all():
                index = np.unravel_index(int(np.argmin(holds)), np.shape(array))
                return name, tuple(map(int, index))
        return None

    def json_schema(self) -> dict[str, float]:
        """The bounds in the words of JSON schema."""
        return {_JSON_WORDS[name]: bound for name, bound in self.given().items()}

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
