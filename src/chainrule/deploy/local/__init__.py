"""A pool of processes on this machine, arrays in shared memory: the default where one machine is enough.

deploy   a handle with the whole client interface; its calls run in several processes
"""

from chainrule.deploy.local._deploy import deploy

__all__ = ["deploy"]
