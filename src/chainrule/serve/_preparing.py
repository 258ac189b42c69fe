"""What a process that runs author code does once, before its first call."""

from __future__ import annotations

import logging

from chainrule._tracing import export_spans
from chainrule.runtime.internal import ComponentConfig, LocalComponent, log_handler
from chainrule.serve._residual_reuse import reuse_residuals


def prepare(component: LocalComponent) -> None:
    """Let a component remember forward passes, and record spans where the operator wants them."""
    reuse_residuals(component)
    if component.config.traces_to:
        export_spans(component.config.traces_to, component.name)


def show_log(config: ComponentConfig) -> None:
    """Let what Chainrule has to say out; the author's loggers stay as the author sets them.

    In the format for machines the root logger speaks too, so that every line is an object.
    """
    handler = log_handler(config.log_format)
    log = logging.getLogger("chainrule")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    if config.log_format == "json":
        logging.getLogger().addHandler(handler)
