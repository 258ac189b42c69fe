"""The author's own functions behind the endpoints of a component, called with tracers.

An endpoint validates numbers, which a tracer does not have. What is known of it while a program is traced is
its shape and dtype: the schema sees ones of that kind, and tracers take the place of what it makes of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._trees import get_at_path, is_arraylike, set_at_path
from chainrule.bridge._skeleton import take_apart
from chainrule.runtime import LocalComponent


class TraceableEndpoints:
    """The derivative endpoints of a component in this process under their names.

    Attributes:
        names: those whose functions are its author's, or JAX's; others are made of them in NumPy.
    """

    def __init__(self, component: LocalComponent) -> None:
        self._local = component
        self.names = frozenset(
            name
            for name, capability in component.capabilities.items()
            if capability.status == "native" or capability.via == "jax"
        )

    def __getattr__(self, endpoint: str) -> Any:
        return partial(self._call, endpoint)

    def _call(self, endpoint: str, *, inputs: Any, **arguments: Any) -> Any:
        function = self._local._implementations[endpoint].function
        paths = {name: set(each) for name, each in arguments.items() if isinstance(each, list)}
        return function(inputs=self._model(inputs, endpoint), **{**arguments, **paths})

    def _model(self, inputs: Any, endpoint: str) -> Any:
        """What the author's function gets for inputs with tracers in them."""
        skeleton, tracers = take_apart(inputs, lambda path, leaf: is_arraylike(leaf))
        ones = [np.broadcast_to(np.ones((), tracer.dtype), tracer.shape) for tracer in tracers]
        model = self._local._schemas.read_inputs(skeleton.build(ones), endpoint, {"dims": {}})
        pairs = zip(skeleton.paths, tracers, strict=True)
        return set_at_path(model, {path: _like(t, get_at_path(model, path)) for path, t in pairs})


def _like(tracer: Any, value: Any) -> Any:
    """A tracer in the shape and dtype that the schema declares, as far as JAX holds it."""
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    return jnp.broadcast_to(tracer, value.shape).astype(dtype)
