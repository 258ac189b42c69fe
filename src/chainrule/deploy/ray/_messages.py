"""What travels between callers, the manager of a pool and its replicas. Imports without Ray."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chainrule.runtime import ComponentConfig

# Smaller contents are sent as bytes, with the message.
_INLINE_BYTES = 1 << 16
_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """What a pool should be. One immutable object, kept by the manager.

    Attributes:
        source: what `load_component` takes.
        config: settings of the component.
        minimum, maximum: the least and the greatest number of replicas.
        options: Ray's options for the actor of each replica.
        depth: calls that one caller sends to a replica at once.
        max_group: the greatest number of calls in one message.
        residuals: forward passes that each replica remembers for gradients.
        timeout_s: how long the answer to one message may take; `None` for no limit.
        idempotent, max_deaths: as in `deploy`.
        quiet_s: seconds of lower load before a replica ends.
        name: under which other processes find the pool; `None` when only its handle knows it.
        id: unique to this pool.
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


def as_shared(content: Any) -> Any:
    """Bytes in the form in which Ray passes them on without a copy, which it does for arrays only."""
    return np.frombuffer(content, np.uint8) if len(content) > _INLINE_BYTES else content


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
    # Ray restarts replicas, but callers repeat calls: a call that Ray repeats could kill every replica.
    return {**options, "max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}


@dataclass(frozen=True)
class Report:
    """What a caller tells the manager twice a second.

    Attributes:
        caller: id of the caller.
        version: version of its roster.
        load: its calls that run or wait.
        in_flight: replica → calls of this caller that it has not answered.
        dead: replicas that Ray does not restart.
    """

    caller: str
    version: str
    load: int
    in_flight: Mapping[str, int]
    dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roster:
    """The replicas of the pool.

    Attributes:
        version: changes with the set of replicas.
        actors: replica → handle of its actor.
    """

    version: str
    actors: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Envelope:
    """An encoded answer, as servers send it: for exceptions, and for calls that came over HTTP."""

    status: int
    content_type: str
    body: Any


CANCELLED = Envelope(499, "text/plain", b"")
"""In place of the answer of a cancelled call."""
