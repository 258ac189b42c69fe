"""A worker of a JAX component remembers forward passes: a gradient that follows `apply` starts from there."""

from __future__ import annotations

import logging
import sys

from chainrule.runtime.internal import LocalComponent, SharedFolder

_log = logging.getLogger(__name__)

# A worker answers one call at a time, mostly `apply` and then its gradient; a few callers may interleave.
_REMEMBERED = 4


def reuse_residuals(component: LocalComponent, *, remembered: int = _REMEMBERED) -> None:
    """Keep what backward passes need, where that pays, for components that use the JAX recipes.

    Whether it pays is timed with the first call of each program, and logged. An author who set the size of
    the cache is not overruled. Workers of one component share what they keep.
    """
    if "chainrule.runtime.jax_recipes" not in sys.modules:
        return
    from chainrule.runtime.internal import current_residual_cache, set_jax_vjp_cache_size

    if not current_residual_cache().max_entries:
        set_jax_vjp_cache_size(remembered, only_if_it_pays=True)
        _log.info(
            "%s: VJP residuals of the last %d calls are kept if it pays", component.name, remembered
        )
    config = component.config
    if config.residual_folder is not None:
        current_residual_cache().shared = SharedFolder(
            config.residual_folder, max_bytes=config.max_residual_bytes
        )
