"""Ways to a component that rooms above this one provide, found by name when they are first asked for.

`client` is below `deploy` and imports nothing of it: this table is all it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.client._transport import Transport

_HOMES = {
    "cluster": "chainrule.deploy.ray:attach",
    "image": "chainrule.deploy.images:open_image",
}


def transport_of(kind: str, *args: Any, **options: Any) -> Transport:
    """Make the transport of a kind; the module that has it is imported now."""
    module, _, name = _HOMES[kind].partition(":")
    make: Callable[..., Transport] = getattr(import_module(module), name)
    return make(*args, **options)
