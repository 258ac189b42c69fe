"""What other packages of this project use of `deploy`; no promise to users.

is_free   whether a port of loopback can be listened on
"""

from chainrule.deploy.images._container import is_free

__all__ = ["is_free"]
