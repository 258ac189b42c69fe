"""What other packages of this project use of `deploy`; no promise to users."""

from chainrule.deploy.images._container import is_free

__all__ = ["is_free"]
