"""A pool of replicas on a Ray cluster: many machines, one handle.

deploy   start replicas, under a name where other processes use them too
attach   a transport to the pool of that name; `Component.from_cluster` is the handle
delete   end the pool of that name
engine   lets `chainrule.serve` answer calls with pools

Modules, in reading order:

    _deploy     `deploy`, `attach`, `delete`, `engine`, the plan of a pool, and the connection to a cluster
    _actor      the actors on the cluster (replicas, and the manager that makes them), and their messages
    _pool       the pool on the caller's side: a transport to the replicas
    _engine     the pool as a server uses it
"""

from chainrule.deploy.ray._deploy import attach, delete, deploy, engine

__all__ = ["attach", "delete", "deploy", "engine"]
