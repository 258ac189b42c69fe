"""This process as a driver of a Ray cluster."""

from __future__ import annotations

import socket

from chainrule._errors import CapabilityError, TransportError

NAMESPACE = "chainrule"
"""Where the keepers of named pools are registered."""

_PATIENCE_S = 5.0


def connect(address: str | None, *, start: bool = False) -> None:
    """Connect to a cluster, unless this process already is.

    Args:
        address: of the cluster; without one, the one that Ray finds from here.
        start: without an address, and where Ray finds none, start one on this machine.

    Raises:
        CapabilityError: Ray is not installed (`ray_missing`).
        TransportError: there is no cluster at this address.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise CapabilityError(
            "Pools on a cluster need Ray: pip install 'chainrule[ray]'. On one machine, "
            "chainrule.deploy.local does without.",
            code="ray_missing",
        ) from None
    if ray.is_initialized():
        return
    try:
        _knock(address)
        ray.init(address=address or (None if start else "auto"), namespace=NAMESPACE)
    except OSError as error:
        raise TransportError(
            f"There is no Ray cluster at {address or 'the default address'}. Start one with "
            "`ray start --head`, or pass another address.",
            code="cluster_unreachable",
        ) from error


def _knock(address: str | None) -> None:
    """See whether anybody listens at an address: Ray itself tries for minutes.

    Raises:
        OSError: nobody does.
    """
    place = (address or "").removeprefix("ray://")
    host, separator, port = place.rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
