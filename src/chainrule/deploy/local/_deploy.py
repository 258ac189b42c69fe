"""`deploy`: several processes with one component, behind one handle."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError
from chainrule._processors import processors
from chainrule.client import Component
from chainrule.client.internal import SubprocessTransport
from chainrule.deploy._pool._autoscale import check_size
from chainrule.deploy.local._pool import ProcessPool
from chainrule.runtime import ComponentConfig


def deploy(
    component: str | Path | Any,
    *,
    replicas: int | None = None,
    autoscale: tuple[int, int] | None = None,
    config: ComponentConfig | Mapping[str, Any] | None = None,
    timeout: float | None = None,
    startup_timeout: float = 60.0,
    idempotent: bool = True,
    max_deaths: int = 3,
    python: str | Path | None = None,
) -> Component:
    """Start processes that answer for a component, in parallel and in spite of crashes.

    Args:
        component: path of the module file or its folder, or a function that can be pickled.
        replicas: how many processes; one per processor that may be used when not given.
        autoscale: least and greatest number of processes instead; more are started while calls wait.
        config: settings of the component.
        timeout: seconds that a call may take; a call that takes longer ends its process.
        startup_timeout: seconds that loading the component may take.
        idempotent: calls may run twice; they are repeated when their process dies.
        max_deaths: after so many deaths, a call's input is held to be the cause (`poison_input`).
        python: the interpreter to use instead of this one.

    Returns:
        A handle like any other; the processes end when it is closed, or dropped.

    Raises:
        DefinitionError: the component cannot be loaded.
        InputError: a pool cannot have this size, or a component not these settings.
    """
    size = processors() if replicas is None else replicas
    minimum, maximum = check_size(size, autoscale)
    settings = ComponentConfig.make(config)
    source = str(Path(component).resolve()) if isinstance(component, (str, Path)) else component
    _check_source(source)

    def spawn() -> SubprocessTransport:
        return SubprocessTransport(
            source,
            config=settings,
            python=None if python is None else str(python),
            startup_timeout=startup_timeout,
            timeout=timeout,
        )

    pool = ProcessPool(
        spawn,
        minimum,
        maximum,
        idempotent=idempotent,
        max_deaths=max_deaths,
        startup_timeout_s=startup_timeout,
    )
    return Component(pool)


def _check_source(source: Any) -> None:
    try:
        pickle.dumps(source)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise DefinitionError(
            f"A process cannot be given this {type(source).__name__}. Deploy a path such as component.py or "
            "component.py:name, or a function of an importable module.",
            code="not_picklable",
        ) from None
