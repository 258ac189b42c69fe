"""Replicas of one component behind one transport: processes on this machine, or actors on a cluster.

The invariant: when a replica dies, its callers wait longer but still get their answer, as long as calls may
run twice and the input is not what kills the replica.

Modules, in reading order:

    _assignment    `Assignment`, which replica gets the next call, and which call waits
    _dispatch      `Replica`, one copy of the component that may die at any time; `Dispatcher`, the
                   assignment for calls of many threads
    _supervision   `Keeper`, who knows which replicas are up; `Supervisor`, threads that start them again
    _transport     `ReplicatedTransport`, all of it as a `Transport` that repeats calls; `PoolTransport`, the
                   same with a supervisor; `ForwardPasses`, which replica ran the forward pass of some inputs

Servers that have other callers too are in `chainrule.client._servers`.
"""

from chainrule.client._pool._assignment import (
    MAX_FAILURES,
    SPARE_LAST_S,
    Assignment,
    Call,
    LeastBusy,
    Place,
    TwoChoices,
)
from chainrule.client._pool._dispatch import Dispatcher, Replica, ReplicaLostError, Slot
from chainrule.client._pool._supervision import Keeper, Supervisor
from chainrule.client._pool._transport import (
    ForwardPasses,
    PoolTransport,
    ReplicatedTransport,
    fingerprint,
)

__all__ = [
    "MAX_FAILURES",
    "SPARE_LAST_S",
    "Assignment",
    "Call",
    "Dispatcher",
    "ForwardPasses",
    "Keeper",
    "LeastBusy",
    "Place",
    "PoolTransport",
    "Replica",
    "ReplicaLostError",
    "ReplicatedTransport",
    "Slot",
    "Supervisor",
    "TwoChoices",
    "fingerprint",
]
