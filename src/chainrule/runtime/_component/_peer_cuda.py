"""The one name that component files import from the peer's `runtime.cuda.ipc`."""

from __future__ import annotations

from typing import Any

__all__ = ["has_cuda_array_interface"]


def has_cuda_array_interface(value: Any) -> bool:
    """Whether a value describes device memory through `__cuda_array_interface__`."""
    return hasattr(value, "__cuda_array_interface__")
