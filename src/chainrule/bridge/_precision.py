"""Components that compute in 64 bits while JAX holds 32.

The rule: what goes to the component is widened to what its schema says, what comes back is narrowed to what
JAX is configured to hold, and derivatives have the dtype of what they are derivatives of.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from chainrule.bridge._target import Target

__all__ = ["PrecisionWarning", "warn_if_narrowed"]


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
            stacklevel=5,
        )
