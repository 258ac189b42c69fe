"""Which module of Chainrule stands in for which module of `tesseract_core`.

An existing `tesseract_api.py` imports its types and recipes from `tesseract_core.runtime`. While such a
file is loaded (and whenever its functions import something later) these names mean the modules below.
The modules are imported when they are asked for: a NumPy component never pays for the JAX recipes.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

PEER_MODULES = {
    "tesseract_core.runtime": "chainrule.runtime",
    "tesseract_core.runtime.config": "chainrule.runtime._runs",
    "tesseract_core.runtime.cuda": "chainrule.runtime._component._peer_cuda",
    "tesseract_core.runtime.cuda.ipc": "chainrule.runtime._component._peer_cuda",
    "tesseract_core.runtime.experimental": "chainrule.runtime.experimental",
    "tesseract_core.runtime.file_interactions": "chainrule.runtime._files",
    "tesseract_core.runtime.jax_recipes": "chainrule.runtime.jax_recipes",
    "tesseract_core.runtime.schema_types": "chainrule.runtime._schema",
    "tesseract_core.runtime.testing": "chainrule.runtime.testing",
    "tesseract_core.runtime.tree_transforms": "chainrule._trees",
}


def resolve_peer_module(name: str, fromlist: tuple[str, ...]) -> Any:
    """What `__import__(name, fromlist=…)` returns for a name below `tesseract_core`."""
    if name == "tesseract_core" and not any(f"{name}.{part}" in PEER_MODULES for part in fromlist):
        return importlib.import_module(name)
    if name != "tesseract_core":
        module = _stand_in(name)
        if fromlist:
            return _with_submodules(module, name, fromlist)
    return _PeerPackage("tesseract_core")


def _stand_in(name: str) -> ModuleType:
    if name not in PEER_MODULES:
        offered = ", ".join(PEER_MODULES)
        raise ModuleNotFoundError(
            f"No module named {name!r}: Chainrule stands in for {offered}. Load the component with "
            "redirect_peer=False to use an installed tesseract-core instead.",
            name=name,
        )
    return importlib.import_module(PEER_MODULES[name])


def _with_submodules(module: ModuleType, name: str, fromlist: tuple[str, ...]) -> Any:
    """`from package import submodule` has to find the stand-in of the submodule."""
    if any(f"{name}.{part}" in PEER_MODULES for part in fromlist):
        return _PeerPackage(name)
    return module


class _PeerPackage(ModuleType):
    """A package of the peer as the component's code sees it: attributes and submodules of ours."""

    def __getattr__(self, attribute: str) -> Any:
        qualified = f"{self.__name__}.{attribute}"
        if qualified in PEER_MODULES or qualified == "tesseract_core.runtime":
            return _PeerPackage(qualified)
        if self.__name__ in PEER_MODULES:
            return getattr(_stand_in(self.__name__), attribute)
        raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}")
