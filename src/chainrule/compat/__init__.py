"""The ancestors' names: try Chainrule by changing an import.

    chainrule.compat.tesseract_core    tesseract-core 1.15
    chainrule.compat.tesseract_jax     tesseract-jax
    chainrule.compat.graphax           graphax
    chainrule.compat.pcx               pcx (pcax)

These packages adapt arguments and results; Chainrule's own packages compute everything.
`install("graphax")` makes `import graphax` mean the package here, in this process, where the real one is
not installed. Modules that exist under an ancestor's name (`graphax.examples.easy`,
`tesseract_core.runtime.config`) have that name here too.

Modules of this package: `_install` (`install`), `__main__` (`python -m chainrule.compat`), `_mirror`
(modules that only pass on the names of a native one).
"""

from chainrule.compat._install import Installation, install

__all__ = ["Installation", "install"]
