"""Switches for an operator who wants to see what a component does: profiles and traces, as log records.

chainrule.runtime.profile    a profile of every call, by cumulative and by own time
chainrule.runtime.trace      the payload and the result of every call, arrays abbreviated
"""

from __future__ import annotations

import cProfile
import io
import json
import logging
import pstats
from collections.abc import Mapping
from typing import Any

import numpy as np

from chainrule._trees import is_arraylike
from chainrule.runtime._component._endpoints import Endpoint, Payload
from chainrule.runtime._component._schemas import Context
from chainrule.runtime._config import ComponentConfig

_profile_log = logging.getLogger("chainrule.runtime.profile")
_trace_log = logging.getLogger("chainrule.runtime.trace")
_ROWS = 30
_SHOWN = 10


def observed(name: str, endpoint: Endpoint, config: ComponentConfig) -> Endpoint:
    """The endpoint with the observations that its component's settings ask for."""
    if config.profiling:
        endpoint = _Profiled(name, endpoint)
    return _Traced(name, endpoint) if config.tracing else endpoint


class _Profiled:
    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self._endpoint = endpoint
        self.can_batch = endpoint.can_batch

    def __call__(self, payload: Payload, context: Context) -> Any:
        profile = cProfile.Profile()
        try:
            return profile.runcall(self._endpoint, payload, context)
        finally:
            _profile_log.info("%s\n%s", self.name, _profile_text(profile))


def _profile_text(profile: cProfile.Profile) -> str:
    stream = io.StringIO()
    stream.write("--- Profiling Statistics ---\n")
    for order in ("cumulative", "tottime"):
        pstats.Stats(profile, stream=stream).sort_stats(order).print_stats(_ROWS)
    return stream.getvalue()


class _Traced:
    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self._endpoint = endpoint
        self.can_batch = endpoint.can_batch

    def __call__(self, payload: Payload, context: Context) -> Any:
        _trace_log.info("%s called with %s", self.name, _abbreviated(payload))
        result = self._endpoint(payload, context)
        _trace_log.info("%s returned %s", self.name, _abbreviated(result))
        return result


def _abbreviated(tree: Any) -> str:
    return json.dumps(_short(tree), default=str)


def _short(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {str(key): _short(value) for key, value in node.items()}
    if isinstance(node, (list, tuple, set, frozenset)):
        return [_short(item) for item in list(node)[:_SHOWN]] + ["…"] * (len(node) > _SHOWN)
    if is_arraylike(node):
        flat = np.asarray(node).ravel()
        values = flat[:_SHOWN].tolist() + ["…"] * (flat.size > _SHOWN)
        return {"shape": list(node.shape), "dtype": str(node.dtype), "values": values}
    return node
