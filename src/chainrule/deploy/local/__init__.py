"""A pool of processes on this machine, with arrays in shared memory: the choice where one machine is enough.

deploy   a handle with the whole client interface, whose calls run in several processes

Everything is in `_deploy`.
"""

from chainrule.deploy.local._deploy import deploy

__all__ = ["deploy"]
