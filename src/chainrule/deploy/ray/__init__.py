"""A pool of replicas on a Ray cluster: many machines, one handle.

deploy   start replicas, under a name if others are to use them
attach   the way to a pool of that name; `Component.from_cluster` is the handle
delete   end a pool of that name
engine   lets `chainrule.serve` answer calls by pools
"""

from chainrule.deploy.ray._deploy import attach, delete, deploy, engine

__all__ = ["attach", "delete", "deploy", "engine"]
