"""`step`: a status for a while, and parameters to empty around it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from chainrule import predictive


def step(
    module: Any, status: Any = None, *, clear_params: Any = None
) -> AbstractContextManager[Any]:
    """Give a model a status inside a `with` block.

    Args:
        module: the model.
        status: inside; with a pair, the second one afterwards.
        clear_params: which parameters to empty afterwards; with a pair, before and afterwards.
    """
    return predictive.step(module, status, clear_params=clear_params)
