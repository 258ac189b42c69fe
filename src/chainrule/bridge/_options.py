"""How a component is to be called: the keyword arguments of `apply_component` as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from chainrule._errors import InputError

VmapMethod = Literal[
    "auto", "sequential", "concurrent", "expand_dims", "broadcast_all", "auto_experimental"
]
Effects = Literal["none", "ordered"]


@dataclass(frozen=True)
class Options:
    """What the caller of `apply_component` decides; see there."""

    vmap_method: VmapMethod | None = "auto"
    materialize_jacobian: bool | None = None
    spot_check: bool = False
    effects: Effects = "none"
    max_concurrency: int | None = None
    infer_by_evaluation: bool = False

    def __post_init__(self) -> None:
        check_choice("vmap_method", self.vmap_method, (*get_args(VmapMethod), None))
        check_choice("effects", self.effects, get_args(Effects))
        if self.max_concurrency is not None:
            check_count("max_concurrency", self.max_concurrency)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse what is not one of the choices."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InputError(
            f"`{name}` is one of {listed}; found {value!r}.", code="invalid_option", path=name
        )


def check_count(name: str, value: int) -> None:
    """Refuse what is not a number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            f"`{name}` is a number of calls, at least 1; found {value!r}.",
            code="invalid_option",
            path=name,
        )
