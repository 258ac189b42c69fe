"""`engine`: pools on a cluster answer the calls of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chainrule.deploy.ray._cluster import connect

if TYPE_CHECKING:
    from chainrule.serve.internal import MakePool


def engine(address: str | None = None) -> MakePool:
    """Let `chainrule.serve` answer calls by pools on a cluster.

    Args:
        address: of the cluster.

    Returns:
        What `serve` and `create_app` take as `make_pool`. A source `pool:NAME` is the pool of that name,
        which other servers may front as well; any other source is deployed, with as many replicas as the
        server has workers, and ends with the server.

    Raises:
        CapabilityError: Ray is not installed.
        TransportError: there is no cluster at this address.
    """
    connect(address, start=True)
    from chainrule.deploy.ray._front import make_front

    return make_front
