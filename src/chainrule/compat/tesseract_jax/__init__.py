"""tesseract-jax on Chainrule: components inside JAX, and a look at what flows through."""

from chainrule.compat.tesseract_jax._functions import apply_tesseract, save_intermediates, sow

__all__ = ["apply_tesseract", "save_intermediates", "sow"]
