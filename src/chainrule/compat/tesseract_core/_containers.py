"""What needs a container engine: named, and refused with the way out."""

from __future__ import annotations

from typing import Any, NoReturn

from chainrule._errors import CapabilityError

__all__ = ["build_tesseract", "no_containers", "run_tesseract", "serve", "teardown"]


def no_containers(name: str, instead: str) -> NoReturn:
    """Refuse a function that needs containers."""
    raise CapabilityError(
        f"{name} needs a container engine, which Chainrule does not drive. {instead}",
        code="containers_not_supported",
        details={"function": name},
    )


def build_tesseract(*args: Any, **kwargs: Any) -> NoReturn:
    """Not here: build with the `tesseract` command of tesseract-core.

    Raises:
        CapabilityError: always.
    """
    no_containers("build_tesseract", "`tesseract build` of tesseract-core makes the image.")


def run_tesseract(*args: Any, **kwargs: Any) -> NoReturn:
    """Not here: `chainrule-tesseract-runtime` runs a component file without an image.

    Raises:
        CapabilityError: always.
    """
    no_containers(
        "run_tesseract", "`chainrule-tesseract-runtime apply …` runs a tesseract_api.py directly."
    )


def serve(*args: Any, **kwargs: Any) -> NoReturn:
    """Not here: `chainrule-tesseract-runtime serve` serves a component file without an image.

    Raises:
        CapabilityError: always.
    """
    no_containers(
        "serve", "`chainrule-tesseract-runtime serve` serves a tesseract_api.py directly."
    )


def teardown(*args: Any, **kwargs: Any) -> NoReturn:
    """Not here: there are no containers of ours to stop.

    Raises:
        CapabilityError: always.
    """
    no_containers("teardown", "`tesseract teardown` of tesseract-core stops its containers.")
