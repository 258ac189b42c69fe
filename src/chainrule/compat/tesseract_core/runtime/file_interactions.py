"""Files that a component reads and writes. See `chainrule.compat._mirror`."""

from chainrule.compat._mirror import mirror

__getattr__, __dir__ = mirror("tesseract_core.runtime.file_interactions")
