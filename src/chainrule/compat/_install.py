"""`install`: let an ancestor's name mean the package here, for this process and on request only."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType, TracebackType
from typing import Self

from chainrule._errors import InputError

NAMES = ("graphax", "pcx", "tesseract_core", "tesseract_jax")


class Installation:
    """Names that were installed; `remove`, or the end of a `with` block, uninstalls them.

    Attributes:
        names: what is installed. Names whose real package is present are left out.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._finder = _Finder(self.names)
        sys.meta_path.insert(0, self._finder)

    def remove(self) -> None:
        """Uninstall the names. Modules that were imported meanwhile keep working."""
        if self._finder not in sys.meta_path:
            return
        sys.meta_path.remove(self._finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in self.names]:
            del sys.modules[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def install(*names: str) -> Installation:
    """Make `import <name>` mean the package in `chainrule.compat` where the real one is absent.

    Args:
        *names: `tesseract_core`, `tesseract_jax`, `graphax`, `pcx`; all of them by default.

    Returns:
        What was installed; call its `remove`, or use it in a `with` statement, to undo it.

    Raises:
        InputError: a name is not one of these.

    Example:
        >>> from chainrule import compat
        >>> with compat.install("graphax") as installed:
        ...     import graphax
        >>> installed.names
        ('graphax',)
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise InputError(
            f"There is no package for {unknown[0]!r}; there are {', '.join(NAMES)}.",
            code="unknown_package",
        )
    return Installation([name for name in names or NAMES if not _is_present(name)])


def _is_present(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `graphax.core` where `chainrule.compat.graphax.core` is: the same module, not a copy."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of an installed name; `None` for every other one."""
        if fullname.partition(".")[0] not in self._names:
            return None
        native = importlib.util.find_spec(f"chainrule.compat.{fullname}")
        if native is None:
            return None
        is_package = native.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=native.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The native module, under one more name."""
        module = importlib.import_module(f"chainrule.compat.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of a module, for `runpy`."""
        native = importlib.util.find_spec(f"chainrule.compat.{fullname}")
        assert native is not None, "only asked for what was found"
        assert isinstance(native.loader, importlib.abc.InspectLoader)
        return native.loader.get_code(native.name)

    def exec_module(self, module: ModuleType) -> None:
        """The module has run under its own name; Python has only replaced its specification."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
