"""What other packages of this project use of `deploy`; no promise to users.

is_free           whether a port of loopback can be listened on
settings_schema   the JSON Schema of a project file
"""

from chainrule.deploy.images._container import is_free
from chainrule.deploy.images._settings import settings_schema

__all__ = ["is_free", "settings_schema"]
