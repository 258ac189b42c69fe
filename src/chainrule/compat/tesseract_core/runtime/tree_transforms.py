"""Paths into nested data. See `chainrule.compat._mirror`."""

from chainrule.compat._mirror import mirror

__getattr__, __dir__ = mirror("tesseract_core.runtime.tree_transforms")
