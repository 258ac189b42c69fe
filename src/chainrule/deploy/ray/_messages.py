"""What travels between callers, the manager of a pool and its replicas. Imports without Ray."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chainrule.runtime import ComponentConfig

_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A pool, as it was ordered.

    Attributes:
        source: what `load_component` takes.
        config: settings of the component.
        minimum, maximum: how many replicas there are at least and at most.
        options: of each replica's actor, as Ray calls them.
        depth: calls that one caller gives to a replica at once.
        max_group: evaluations that go to a replica in one message.
        residuals: forward passes that each replica remembers for gradients.
        timeout_s: how long one message may take; `None` for ever.
        idempotent, max_deaths: as in `deploy`.
        quiet_s: seconds of lower load before a replica goes.
        name: by which others find the pool; `None` when it is its maker's alone.
        id: of this pool, and of no other.
    """

    source: Any
    config: ComponentConfig
    minimum: int
    maximum: int
    options: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 2
    max_group: int = 64
    residuals: int = 64
    timeout_s: float | None = None
    idempotent: bool = True
    max_deaths: int = 3
    quiet_s: float = 10.0
    name: str | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))


def actor_options(
    resources: Mapping[str, float] | None, runtime_env: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Options of an actor from resources by name, as in `{"CPU": 1, "GPU": 0.5, "licence": 1}`."""
    given = {"CPU": 1, **(resources or {})}
    options: dict[str, Any] = {
        own: given.pop(name) for name, own in _OWN_OPTIONS.items() if name in given
    }
    options["resources"] = given
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    # Restarts are Ray's business, repeats are the caller's: a replayed call could kill every replica.
    return {**options, "max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}


@dataclass(frozen=True)
class Report:
    """What a caller says of itself.

    Attributes:
        caller: who it is.
        version: of the roster it has.
        load: calls it runs or has waiting.
        in_flight: replica → calls it has not answered.
        dead: replicas that do not come back by themselves.
    """

    caller: str
    version: str
    load: int
    in_flight: Mapping[str, int]
    dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roster:
    """Who is in the pool.

    Attributes:
        version: another one after every change.
        actors: replica → handle of its actor.
    """

    version: str
    actors: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Envelope:
    """An answer in the form in which servers send it: exceptions travel so, and whole calls over HTTP."""

    status: int
    content_type: str
    body: Any


CANCELLED = Envelope(499, "text/plain", b"")
"""In place of an answer that nobody waits for."""
