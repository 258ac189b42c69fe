"""Components that compute in 64 bits while JAX holds 32.

The rule: what goes to the component is widened to what its schema says, what comes back is narrowed to what
JAX is configured to hold, and derivatives have the dtype of what they are derivatives of.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from chainrule.bridge._target import Target


class PrecisionWarning(UserWarning):
    """A component computes in a wider dtype than JAX is configured to hold."""


def warn_if_narrowed(target: Target, dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Warn if JAX holds some of these arrays in a narrower dtype than the component declares."""
    held = {path: jax.dtypes.canonicalize_dtype(dtype) for path, dtype in dtypes.items()}
    narrowed = [
        f"`{path}` {dtypes[path]} as {held[path]}" for path in dtypes if dtypes[path] != held[path]
    ]
    if narrowed:
        warnings.warn(
            f"{target.name} declares 64 bits and JAX holds 32: {', '.join(narrowed)}. Call "
            '`jax.config.update("jax_enable_x64", True)` at the start of your program to keep all digits.',
            PrecisionWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The `stacklevel`, for whoever calls this, of the code that called this library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_ours(frame.f_globals):
        frame, level = frame.f_back, level + 1
    return level


def _is_ours(names: Mapping[str, Any]) -> bool:
    return names.get("__name__", "").partition(".")[0] == __package__.partition(".")[0]
