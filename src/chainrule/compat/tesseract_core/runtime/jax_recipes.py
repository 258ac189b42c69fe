"""One-line endpoint bodies around a jitted function. See `chainrule.compat._mirror`."""

from chainrule.compat._mirror import mirror

__getattr__, __dir__ = mirror("tesseract_core.runtime.jax_recipes")
