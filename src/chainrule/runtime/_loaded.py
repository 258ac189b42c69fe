"""The package that the private packages of loaded components belong to, see `_component/_isolation.py`.

It has no modules of its own. Importing it makes its subpackages importable by name. That is how a child
process of `multiprocessing` finds the functions and classes of a component: it unpickles
`chainrule.runtime._loaded.<token>.<module>`, and Python imports this module first.
"""

from chainrule.runtime._component._isolation import install_finder

__path__: list[str] = []

install_finder()
