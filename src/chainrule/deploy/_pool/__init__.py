"""Replicas of one component behind one transport, whatever runs them: processes here, actors on a cluster.

Replica         one copy of the component, reached by messages; it may die at any time
Dispatcher      which replica gets the next call, and who waits
Supervisor         threads that keep replicas alive
Affinity        which replica ran the forward pass of some inputs
Autoscaler      how many replicas there should be
PoolTransport   all of it as a `Transport`: retries, poisonous inputs, replacement

The invariant: a replica's death costs its callers time, never an answer, as long as calls may run twice and
the input is not what kills it.
"""

from chainrule.deploy._pool._dispatch import Dispatcher, Replica, ReplicaLostError, Slot
from chainrule.deploy._pool._supervision import Autoscaler, Supervisor
from chainrule.deploy._pool._transport import ForwardPasses, PoolTransport, fingerprint

__all__ = [
    "Autoscaler",
    "Dispatcher",
    "ForwardPasses",
    "PoolTransport",
    "Replica",
    "ReplicaLostError",
    "Slot",
    "Supervisor",
    "fingerprint",
]
