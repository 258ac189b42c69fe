"""Physical units at the border: quantities come in, plain numbers in the declared units go on.

`pint` does the arithmetic when it is installed. Without it units are labels: the same text passes, and
anything else is refused rather than guessed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from chainrule._errors import DefinitionError
from chainrule.runtime._schema._problems import unit_mismatch


@cache
def _registry() -> Any:
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
    registry = _registry()
    try:
        known = isinstance(units, str) and (registry is None or registry.Unit(units) is not None)
    except Exception:  # pint raises its own, tokenize's and the parser's errors, by kind of mistake
        known = False
    if not known:
        raise DefinitionError(
            f"Unknown units {units!r}: write them as pint does, for example 'm/s' or 'kg*m**2'.",
            code="unit_unknown",
        )


def is_quantity(value: Any) -> bool:
    """Whether a value is a number with units (a pint quantity, without importing pint)."""
    return hasattr(value, "magnitude") and hasattr(value, "units") and hasattr(value, "to")


def quantity_in(units: str | None, quantity: Any) -> Any:
    """The magnitude of a quantity in the declared units.

    Raises:
        PydanticCustomError: `array_unit_mismatch`, when the units do not convert.
    """
    try:
        return quantity.to(units or "dimensionless").magnitude
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "pint":
            raise
        raise unit_mismatch(units, str(quantity.units)) from None


def scaled_to(units: str | None, value: Any, given: Any) -> Any:
    """A number whose units came as text (in an encoded array), in the declared units.

    Raises:
        PydanticCustomError: `array_unit_mismatch`, when the units do not convert.
    """
    if given is None or given == units:
        return value
    if not isinstance(given, str):
        raise unit_mismatch(units, type(given).__name__, hint="Write units as text.")
    registry = _registry()
    if registry is None:
        raise unit_mismatch(units, given, hint="Install pint to convert units.")
    try:
        quantity = registry.Quantity(value, given)
    except Exception:  # as in check_units
        raise unit_mismatch(units, given) from None
    return quantity_in(units, quantity)
