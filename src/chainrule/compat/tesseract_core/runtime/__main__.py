"""`python -m chainrule.compat.tesseract_core.runtime`."""

from chainrule.compat.tesseract_core.runtime._main import main

main()
