"""Replicas of one component behind one transport, whatever runs them: processes here, actors on a cluster.

Replica         one copy of the component, reached by messages; it may die at any time
Dispatcher      which replica gets the next call, and who waits
Minders         threads that keep replicas alive
Affinity        which replica ran the forward pass of some inputs
Autoscaler      how many replicas there should be
PoolTransport   all of it as a `Transport`: retries, poisonous inputs, replacement

The invariant: a replica's death costs its callers time, never an answer, as long as calls may run twice and
the input is not what kills it.
"""

from chainrule.deploy._pool._affinity import Affinity, fingerprint
from chainrule.deploy._pool._autoscale import Autoscaler
from chainrule.deploy._pool._dispatch import Dispatcher, Slot
from chainrule.deploy._pool._minders import Minders
from chainrule.deploy._pool._replica import Replica, ReplicaLostError
from chainrule.deploy._pool._transport import PoolTransport

__all__ = [
    "Affinity",
    "Autoscaler",
    "Dispatcher",
    "Minders",
    "PoolTransport",
    "Replica",
    "ReplicaLostError",
    "Slot",
    "fingerprint",
]
