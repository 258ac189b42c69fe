"""Components: from a file, a function or an executable to validated endpoints.

    load_component, component, from_command      three ways to make one
        → Definition                             what the author gave
        → LocalComponent                         endpoints, capabilities, OpenAPI document

In reading order:

    _definition             what an author gives; where an endpoint comes from; the content hash
    _loading                files, folders, modules → Definition
    _isolation              run a file without an effect on the rest of the process
    _jax_modules            what JAX can do with a file, read from its syntax
    _functions              annotated functions → Definition
    _commands               executables and `component.yaml` → Definition
    _schemas                the author's models, those made from them, plain trees
    _local                  `LocalComponent`
    _handlers               `apply` and `abstract_eval`: validate, run, validate
    _derivative_handlers    the derivative endpoints: paths, vectors, blocks
    _derivation             endpoints that the author left out
    _failures               errors of a call
    _observation            profiles, traces, kept output
    _openapi                the OpenAPI document of a component
    _document               what a document says, for programs and people
    _peer_cuda              a stand-in for a module of the peer

Names are loaded when they are first used: the command line starts faster that way.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.runtime._component._commands import from_command
    from chainrule.runtime._component._definition import ENDPOINTS, Batching, Capability, Definition
    from chainrule.runtime._component._functions import component
    from chainrule.runtime._component._loading import load_component
    from chainrule.runtime._component._local import LocalComponent

__all__ = [
    "ENDPOINTS",
    "Batching",
    "Capability",
    "Definition",
    "LocalComponent",
    "component",
    "from_command",
    "load_component",
]

_HOMES = {
    "ENDPOINTS": "_definition",
    "Batching": "_definition",
    "Capability": "_definition",
    "Definition": "_definition",
    "LocalComponent": "_local",
    "component": "_functions",
    "from_command": "_commands",
    "load_component": "_loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
