"""`deploy`, `attach`, `delete`, `engine`: how a process gets a pool on a cluster, by a `PoolPlan`.

This module imports without Ray.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainrule._errors import InputError, TransportError, missing_dependency
from chainrule.client import Component
from chainrule.deploy._scaling import check_size
from chainrule.runtime import ComponentConfig

if TYPE_CHECKING:
    from chainrule.deploy.ray._pool import RayPool
    from chainrule.serve.internal import MakePool


# The manager needs almost no resources. It runs on the head node, without which the cluster ends anyway.
_MANAGER_OPTIONS = {
    "num_cpus": 0,
    "max_restarts": -1,
    "max_task_retries": -1,
    "resources": {"node:__internal_head__": 0.001},
}
NAMESPACE = "chainrule"
"""The namespace in which the managers of named pools are registered."""
_CONNECT_WITHIN_S = 5.0
# Name of a resource, as users and Ray's status say it → the option of an actor that asks for it.
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


def deploy(
    component: str | Path | Any,
    *,
    name: str | None = None,
    replicas: int = 1,
    resources: Mapping[str, float] | None = None,
    autoscale: tuple[int, int] | None = None,
    config: ComponentConfig | Mapping[str, Any] | None = None,
    timeout: float | None = None,
    startup_timeout: float = 120.0,
    idempotent: bool = True,
    max_deaths: int = 3,
    quiet: float = 10.0,
    runtime_env: Mapping[str, Any] | None = None,
    address: str | None = None,
) -> Component:
    """Start replicas of a component on a Ray cluster.

    Args:
        component: path of the module file or its folder, as every node sees it, or a function.
        name: under which `Component.from_cluster` and servers find the pool. A pool with a name stays until
            `delete`; one without ends with its handle.
        replicas: number of replicas.
        resources: what each replica occupies, such as `{"CPU": 1, "GPU": 0.5, "memory": 2e9}`; one core
            when not given.
        autoscale: least and greatest number of replicas instead; more are started while calls wait.
        config: settings of the component.
        timeout: seconds that a message may take; after that its replica is started again.
        startup_timeout: seconds that the replicas may take to be ready.
        idempotent: calls may run twice; they are repeated when their replica or its node is lost.
        max_deaths: a call that this many replicas died of is refused (`poison_input`).
        quiet: seconds of lower load before a replica ends.
        runtime_env: what Ray installs on the nodes: `working_dir`, `pip`, `env_vars`, ….
        address: of the cluster; the one this process is connected to, or that `ray.init` finds, or a new
            one on this machine, when not given.

    Returns:
        A handle like any other.

    Raises:
        DefinitionError: the component cannot be loaded.
        InputError: there is a pool of this name already, or the size is not possible.
        TransportError: there is no such cluster, or its resources are taken.
    """
    minimum, maximum = check_size(replicas, autoscale)
    plan = PoolPlan(
        source=str(component) if isinstance(component, Path) else component,
        config=ComponentConfig.make(config),
        minimum=minimum,
        maximum=maximum,
        options=actor_options(resources, runtime_env),
        depth=2 if idempotent else 1,
        timeout_s=timeout,
        idempotent=idempotent,
        max_deaths=max_deaths,
        quiet_s=quiet,
        name=name,
    )
    connect(address, start=True)
    manager = _start_manager(plan)
    try:
        return Component(_pool(manager, plan, name is None, startup_timeout))
    except BaseException:
        if name is not None:
            delete(name)
        raise


def attach(name: str, *, address: str | None = None, startup_timeout: float = 60.0) -> RayPool:
    """A transport to the pool that was deployed under a name.

    Args:
        name: of the pool.
        address: of the cluster.
        startup_timeout: seconds to wait for a replica that is up.

    Raises:
        TransportError: there is no such cluster or no such pool.
    """
    connect(address)
    import ray

    manager = _find_manager(name)
    return _pool(manager, ray.get(manager.plan.remote()), False, startup_timeout)


def delete(name: str, *, address: str | None = None) -> None:
    """End a pool and free what it occupies; calls that are under way fail.

    Args:
        name: of the pool.
        address: of the cluster.

    Raises:
        TransportError: there is no such cluster or no such pool.
    """
    connect(address)
    import ray

    ray.kill(_find_manager(name))


def engine(address: str | None = None) -> MakePool:
    """Let `chainrule.serve` answer calls with pools on a cluster.

    Args:
        address: of the cluster.

    Returns:
        What `serve` and `create_app` take as `make_pool`. A source `pool:NAME` is the pool of that name,
        which other servers may use too; any other source is deployed, with as many replicas as the
        server has workers, and ends with the server.

    Raises:
        CapabilityError: Ray is not installed.
        TransportError: there is no cluster at this address.
    """
    connect(address, start=True)
    from chainrule.deploy.ray._engine import make_server_pool

    return make_server_pool


def _pool(
    manager: Any, plan: PoolPlan, ends_with_handle: bool, startup_timeout_s: float
) -> RayPool:
    from chainrule.deploy.ray._pool import RayPool

    pool = RayPool(
        manager, plan, ends_with_handle=ends_with_handle, startup_timeout_s=startup_timeout_s
    )
    try:
        pool.start()
    except BaseException:
        pool.close()
        raise
    return pool


def _start_manager(plan: PoolPlan) -> Any:
    import ray

    from chainrule.deploy.ray._actor import PoolManager

    options: dict[str, Any] = dict(_MANAGER_OPTIONS)
    if plan.name is not None:
        options |= {"name": plan.name, "namespace": NAMESPACE, "lifetime": "detached"}
    try:
        return ray.remote(PoolManager).options(**options).remote(plan)
    except ValueError as error:  # Ray raises this where the name is taken
        raise InputError(
            f"There is a pool {plan.name!r} on this cluster already. Use Component.from_cluster, another "
            "name, or chainrule.deploy.ray.delete first.",
            code="pool_exists",
        ) from error


def _find_manager(name: str) -> Any:
    import ray

    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        raise TransportError(
            f"There is no pool {name!r} on this cluster. Deploy one: chainrule.deploy.ray.deploy(…, "
            f"name={name!r}).",
            code="no_such_pool",
        ) from error


def connect(address: str | None, *, start: bool = False) -> None:
    """Connect to a cluster, unless this process is connected already.

    Args:
        address: address of the cluster; the one that Ray finds from here when not given.
        start: start a cluster on this machine where no address is given and Ray finds none.

    Raises:
        CapabilityError: Ray is not installed (`missing_dependency`).
        TransportError: there is no cluster at this address.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing_dependency(
            "Pools other than those of chainrule.deploy.local need", "ray", "'chainrule[ray]'"
        ) from error
    if ray.is_initialized():
        return
    try:
        _check_reachable(address)
        ray.init(address=address or (None if start else "auto"), namespace=NAMESPACE)
    except OSError as error:
        raise TransportError(
            f"There is no Ray cluster at {address or 'the default address'}. Start one with "
            "`ray start --head`, or pass another address.",
            code="cluster_unreachable",
        ) from error


def _check_reachable(address: str | None) -> None:
    """Try to connect to an address for a few seconds; Ray itself would try for minutes.

    Raises:
        OSError: nothing listens there.
    """
    place = (address or "").removeprefix("ray://")
    host, separator, port = place.rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_WITHIN_S).close()
