"""Look inside JAX programs while they run: values, tangents, cotangents."""

from chainrule.harvest._collect import DuplicateNameError
from chainrule.harvest._save import save_intermediates
from chainrule.harvest._sow import sow

__all__ = ["DuplicateNameError", "save_intermediates", "sow"]
