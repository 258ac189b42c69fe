"""What packages offer to the layers below them, registered by name.

A module never names a module of a higher layer. Where it needs something from there (`Component.from_image`
needs a container, a component in its own process needs the worker of `serve`), it asks here for a name. The
top of the library, `chainrule/__init__`, registers which module has it. Nothing is imported before it is
asked for.
"""

from importlib import import_module
from operator import attrgetter
from typing import Any

_HOMES: dict[str, str] = {}


def register(**homes: str) -> None:
    """Say where things are.

    Args:
        **homes: name → `module`, or `module:attribute`.
    """
    _HOMES.update(homes)


def home_of(name: str) -> str:
    """Where something is, as it was registered.

    Raises:
        LookupError: nothing is registered under this name.
    """
    return _HOMES[name]


def provided(name: str) -> Any:
    """What is registered under a name; its module is imported now.

    Raises:
        LookupError: nothing is registered under this name.
        ImportError: its module needs packages that are not installed.
    """
    module, _, attribute = home_of(name).partition(":")
    found = import_module(module)
    return attrgetter(attribute)(found) if attribute else found
