"""The types of schemas, those that `runtime` does not export included. See `chainrule.compat._mirror`."""

from chainrule.compat._mirror import mirror

__getattr__, __dir__ = mirror("tesseract_core.runtime.schema_types")
