"""A component in this process, behind the interface of all transports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule._tracing import is_traced, span
from chainrule.client._transport import Ticket, Transport
from chainrule.runtime import ComponentConfig, LocalComponent, load_component
from chainrule.runtime.internal import Run


class InProcessTransport(Transport):
    """Calls a component of this process; nothing is encoded. Arrays are copied, each way once.

    Args:
        component: the component.
        source: what it was loaded from, as `load_component` takes it.
    """

    place = "in this process"

    def __init__(self, component: LocalComponent, source: Any = None) -> None:
        self.local: LocalComponent = component
        self._source = os.path.abspath(source) if isinstance(source, (str, Path)) else source

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle that is sent to another process loads the component there.
        source = self.local if self._source is None else self._source
        return _load, (source, self.local.config)

    @property
    def known_document(self) -> dict[str, Any]:
        """The component's own document."""
        return self.local.openapi_schema

    def describe(self) -> dict[str, Any]:
        """The component's own document."""
        return self.local.openapi_schema

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """Call the endpoint in the calling thread; it cannot be broken off."""
        run = None if run_id is None else Run(self.local.config, run_id=run_id)
        if not is_traced():
            return self.local.call(endpoint, payload, run=run)
        with span(f"{self.local.name} {endpoint}", kind="INTERNAL"):
            return self.local.call(endpoint, payload, run=run)

    def health(self) -> dict[str, Any]:
        """Always well: we are running."""
        return dict(self.local.health())

    def close(self) -> None:
        """There is nothing to let go of."""


def _load(source: Any, config: ComponentConfig) -> InProcessTransport:
    return InProcessTransport(load_component(source, config=config), source)
