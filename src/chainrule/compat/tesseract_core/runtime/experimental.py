"""Files, runs and derivative helpers for component authors. See `chainrule.compat._mirror`."""

from chainrule.compat._mirror import mirror

__getattr__, __dir__ = mirror("tesseract_core.runtime.experimental")
