"""The exceptions that Chainrule raises on purpose.

`ChainruleError` is the base of all. Each has a stable `code`; `docs/reference/errors.md` lists them.
"""

from chainrule._errors import (
    CapabilityError,
    ChainruleError,
    ComponentError,
    DecodeError,
    DefinitionError,
    InputError,
    LimitError,
    NotGrantedError,
    PathError,
    StorageError,
    TransportError,
)

__all__ = [
    "CapabilityError",
    "ChainruleError",
    "ComponentError",
    "DecodeError",
    "DefinitionError",
    "InputError",
    "LimitError",
    "NotGrantedError",
    "PathError",
    "StorageError",
    "TransportError",
]
