"""The ancestors' names, for people who want to try Chainrule by changing an import.

    chainrule.compat.tesseract_core    tesseract-core 1.15
    chainrule.compat.tesseract_jax     tesseract-jax
    chainrule.compat.graphax           graphax
    chainrule.compat.pcx               pcx (pcax)

These packages adapt arguments and results; everything is computed by the native rooms. `install("graphax")`
makes `import graphax` mean the package here, in this process, where the real one is absent.
"""

from chainrule.compat._install import Installation, install

__all__ = ["Installation", "install"]
