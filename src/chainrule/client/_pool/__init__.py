"""Replicas of one component behind one transport: processes on this machine, or actors on a cluster.

The invariant: when a replica dies, its callers wait longer but still get their answer, as long as calls may
run twice and the input is not what kills the replica.

Modules, in reading order:

    _assignment    `Assignment`, which replica gets the next call, and which call waits
    _dispatch      `Replica`, one copy of the component that may die at any time; `Dispatcher`, the
                   assignment for calls of many threads
    _supervision   `Supervisor`, threads that start replicas again
    _transport     `PoolTransport`, all of it as a `Transport` that repeats calls; `ForwardPasses`, which
                   replica ran the forward pass of some inputs
"""

from chainrule.client._pool._assignment import SPARE_LAST_S, Assignment, Call, Place
from chainrule.client._pool._dispatch import Dispatcher, Replica, ReplicaLostError, Slot
from chainrule.client._pool._supervision import Supervisor
from chainrule.client._pool._transport import ForwardPasses, PoolTransport, fingerprint

__all__ = [
    "SPARE_LAST_S",
    "Assignment",
    "Call",
    "Dispatcher",
    "ForwardPasses",
    "Place",
    "PoolTransport",
    "Replica",
    "ReplicaLostError",
    "Slot",
    "Supervisor",
    "fingerprint",
]
