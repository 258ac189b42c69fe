"""Load a module file without an effect on the rest of the process.

Python's own way to import a file by path registers it under its stem, so that a second `tesseract_api.py`
replaces the first, and finds the file's neighbours only after `sys.path` was changed for the whole process.
Here every load gets a package of its own, `chainrule.runtime._loaded.<token>`, whose `__path__` is the file's
folder:

* the file is the submodule `<package>.<stem>`; its neighbours are further submodules;
* the code sees a private `__import__`, carried by the `__builtins__` of its globals. Python takes an
  import statement's `__import__` from there, so the redirection holds for this code, in every thread,
  also when an import is executed later inside a function, and for no other code;
* that `__import__` sends `tesseract_core.runtime…` to Chainrule, top-level names that are neighbours of
  the file to the private package, and everything else to Python.

The token contains the folder, so that another process can open the package from its name alone. That is what
`multiprocessing` needs: a function or class of the component is pickled by its module's name, and a child
that was started with `spawn` or `forkserver` imports that name (see `chainrule.runtime._loaded`).

Invariant: `sys.path`, `os.environ` and every public entry of `sys.modules` are as they were.

An existing `tesseract_api.py` imports its types and recipes from `tesseract_core.runtime`. `PEER_MODULES`
says which module of Chainrule stands in for which of the peer's. They are imported when they are asked for:
a NumPy component never pays for the JAX recipes.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from chainrule._errors import DefinitionError
from chainrule._frames import is_generated, is_installed, is_ours

_PREFIX = "chainrule.runtime._loaded."
_numbers = itertools.count()
_MAX_FRAMES = 200  # of a traceback that are searched: endless recursion has as many as one likes


def load_module(path: Path, *, redirect_peer: bool = True) -> ModuleType:
    """Execute a Python file in a private package and return its module.

    Args:
        path: the file.
        redirect_peer: resolve `tesseract_core.runtime…` to Chainrule's own modules, whether or not
            tesseract-core is installed. `False` leaves those imports to Python.

    Raises:
        DefinitionError: the file is missing (`module_missing`) or fails while it runs
            (`module_failed`, the author's exception is the cause).
    """
    path = path.resolve()
    if not path.is_file():
        raise DefinitionError(
            f"No component file at {path}. Expected a Python file with InputSchema, OutputSchema and "
            "apply; `chainrule init` writes one.",
            code="module_missing",
            details={"file": str(path)},
        )
    package = _open_package(path.parent, redirect_peer)
    try:
        return _execute(f"{package}.{path.stem.replace('.', '_')}", path)
    except (Exception, SystemExit) as error:
        _forget(package)
        raise DefinitionError(
            f"{path.name} failed while it was loaded: {type(error).__name__}: "
            f"{str(error).replace(f'{package}.', '')}{author_line(error)}{_advice(path, error)}",
            code="module_failed",
            details={"file": str(path), "exception": type(error).__name__},
        ) from error


def _advice(path: Path, error: BaseException) -> str:
    """What to do about a file that imports itself, or a package that is not installed."""
    missing = without_package(getattr(error, "name", None) or "").partition(".")[0]
    library = PathFinder.find_spec(path.stem)
    has_name_of_library = library is not None and library.origin != str(path)
    if isinstance(error, ModuleNotFoundError) and missing != path.stem:
        has_name_of_library = False  # another package is missing
    if has_name_of_library and isinstance(error, (ImportError, AttributeError)):
        return (
            f". The file has the name of the library {path.stem!r}, so `import {path.stem}` in it finds "
            "the file itself: give the file another name."
        )
    return install_advice(error)


def install_advice(error: BaseException) -> str:
    """What to do about a package that is not installed, as the end of a message; empty for other errors."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    return (
        f". Install {without_package(error.name).partition('.')[0]} into this environment, or list it in "
        "requirements.txt beside the component and use "
        "Component.from_source(…, environment=True), which installs what is listed there."
    )


def author_line(error: BaseException) -> str:
    """Where the author's code was: the innermost line that is neither ours nor of an installed package."""
    frames = [
        frame
        for frame in reversed(traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES))
        if not is_ours(frame.filename) and not is_generated(frame.filename)
    ]
    own = (frame for frame in frames if not is_installed(frame.filename))
    frame = next(own, frames[0] if frames else None)
    return f" at {frame.filename}:{frame.lineno} ({frame.name})" if frame else ""


def defined_at(function: Callable[..., Any]) -> str:
    """Where a function of the author's is defined, as `author_line` writes it; nothing for ours."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or is_ours(code.co_filename) or is_generated(code.co_filename):
        return ""
    return f" at {code.co_filename}:{code.co_firstlineno} ({code.co_name})"


def loaded_sources(module: ModuleType) -> dict[str, Path]:
    """The source files of a loaded module and of the neighbours it has imported so far, by name."""
    package = _package_of(module.__name__)
    # A copy in one step: while a list grows, the collector may let another thread import something.
    loaded_modules = sys.modules.copy()
    return {
        name.removeprefix(f"{package}."): Path(file)
        for name, loaded in loaded_modules.items()
        if name.startswith(f"{package}.") and (file := getattr(loaded, "__file__", None))
    }


def imports_jax(module: ModuleType) -> bool:
    """Whether a loaded module, or a neighbour of it, has imported JAX or a package that is built on JAX."""
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    package = sys.modules[_package_of(module.__name__)]
    # Both are imported by every component, and import JAX for those that ask for more only.
    imported = package.__dict__["imported_names"] - {"chainrule", "chainrule.runtime"}
    loaded_modules = sys.modules.copy()
    return any(
        vars(loaded).get("jax") is jax and not imported.isdisjoint(_names_on_the_way(name))
        for name, loaded in loaded_modules.items()
    )


def _names_on_the_way(name: str) -> Iterator[str]:
    """The packages of a module, and the module: a, a.b, a.b.c."""
    return itertools.accumulate(name.split("."), "{}.{}".format)


def without_package(name: str) -> str:
    """A full name as the author knows it, without the private package."""
    return name.removeprefix(f"{_package_of(name)}.") if name.startswith(_PREFIX) else name


def is_peer_redirected(module: ModuleType) -> bool:
    """Whether a loaded module has Chainrule in place of `tesseract_core.runtime`."""
    place = _read_token(_package_of(module.__name__).removeprefix(_PREFIX))
    return place is not None and place[1]


def install_finder() -> None:
    """Let Python import private packages and their modules by name."""
    if not any(isinstance(finder, _PrivateFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PrivateFinder())


def _package_of(name: str) -> str:
    return _PREFIX + name.removeprefix(_PREFIX).partition(".")[0]


def _token(folder: Path, redirect_peer: bool) -> str:
    """An identifier from which `_read_token` gets the folder back; another one for every load."""
    kind = "peer" if redirect_peer else "plain"
    return f"{kind}_{next(_numbers)}_{str(folder).encode().hex()}"


def _read_token(token: str) -> tuple[Path, bool] | None:
    try:
        kind, _, folder = token.split("_")
        return Path(bytes.fromhex(folder).decode()), kind == "peer"
    except ValueError:
        return None


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        name, path, loader=_PrivateLoader(name, str(path))
    )
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _PrivateLoader(name, str(path)).exec_module(module)
    return module


def _open_package(folder: Path, redirect_peer: bool) -> str:
    install_finder()
    return importlib.import_module(f"{_PREFIX}{_token(folder, redirect_peer)}").__name__


def _forget(package: str) -> None:
    for name in [n for n in list(sys.modules) if n == package or n.startswith(f"{package}.")]:
        del sys.modules[name]


def _private_import(
    package: str, folder: Path, redirect_peer: bool, imported_names: set[str]
) -> Callable[..., Any]:
    """The `__import__` that the code of one component sees; it notes what is imported from elsewhere."""

    @cache
    def is_neighbour(top: str) -> bool:
        return _is_neighbour(folder, top)

    def private_import(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        top = name.partition(".")[0]
        if level == 0 and redirect_peer and top == "tesseract_core":
            return resolve_peer_module(name, tuple(fromlist or ()))
        if level == 0 and is_neighbour(top):
            if fromlist:
                return builtins.__import__(f"{package}.{name}", globals, locals, fromlist)
            importlib.import_module(f"{package}.{name}")
            return sys.modules[f"{package}.{top}"]
        if level == 0:
            imported_names.update(
                _names_on_the_way(name), (f"{name}.{part}" for part in fromlist or ())
            )
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    return private_import


def _is_neighbour(folder: Path, top: str) -> bool:
    """Whether a top-level name means a file or package beside the component.

    A folder without `__init__.py` counts only when nothing of that name is installed: it may be anything,
    a clone of the package that is meant, for example.
    """
    if top in sys.stdlib_module_names:
        return False
    if (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file():
        return True
    return (folder / top).is_dir() and importlib.util.find_spec(top) is None


class _PrivateFinder:
    """Finds private packages and their submodules, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a private package or submodule; `None` for every other name."""
        if not fullname.startswith(_PREFIX):
            return None
        if fullname == _package_of(fullname):
            place = _read_token(fullname.removeprefix(_PREFIX))
            return place and ModuleSpec(fullname, _PackageLoader(*place), is_package=True)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _PrivateLoader(spec.loader.name, spec.loader.path)
        return spec


class _PackageLoader(Loader):
    """Makes the private package of one component."""

    def __init__(self, folder: Path, redirect_peer: bool) -> None:
        self._folder = folder
        self._redirect_peer = redirect_peer

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty package."""
        return ModuleType(spec.name, "The private package of one loaded component.")

    def exec_module(self, package: ModuleType) -> None:
        """Give the package its folder, and its code an `__import__` of its own."""
        package.__path__ = [str(self._folder)]
        namespace, imported_names = dict(vars(builtins)), set[str]()
        namespace["__import__"] = _private_import(
            package.__name__, self._folder, self._redirect_peer, imported_names
        )
        package.__dict__["imported_names"] = imported_names
        package.__dict__["private_builtins"] = namespace


class _PrivateLoader(SourceFileLoader):
    """Runs a source file with its package's builtins and leaves no bytecode beside it."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        package = sys.modules[_package_of(module.__name__)]
        module.__dict__["__builtins__"] = package.__dict__["private_builtins"]
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compile from source: a component's folder may be read-only, or under version control."""
        return self.source_to_code(self.get_data(self.path), self.path)


PEER_MODULES = {
    "tesseract_core.runtime": "chainrule.runtime",
    "tesseract_core.runtime.config": "chainrule.runtime._runs",
    "tesseract_core.runtime.cuda": "chainrule._device",
    "tesseract_core.runtime.cuda.ipc": "chainrule._device",
    "tesseract_core.runtime.experimental": "chainrule.runtime.experimental",
    "tesseract_core.runtime.file_interactions": "chainrule.runtime._files",
    "tesseract_core.runtime.jax_recipes": "chainrule.runtime.jax_recipes",
    "tesseract_core.runtime.schema_types": "chainrule.runtime._schema",
    "tesseract_core.runtime.testing": "chainrule.runtime.testing",
    "tesseract_core.runtime.tree_transforms": "chainrule._trees",
}


def resolve_peer_module(name: str, fromlist: tuple[str, ...]) -> Any:
    """What `__import__(name, fromlist=…)` returns for a name below `tesseract_core`."""
    if name == "tesseract_core":
        is_ours = any(f"{name}.{part}" in PEER_MODULES for part in fromlist)
        return _PeerPackage(name) if is_ours else importlib.import_module(name)
    _stand_in(name)  # says so where there is none
    return _PeerPackage(name if fromlist else "tesseract_core")


def _stand_in(name: str) -> ModuleType:
    if name not in PEER_MODULES:
        offered = ", ".join(PEER_MODULES)
        raise ModuleNotFoundError(
            f"No module named {name!r}: Chainrule stands in for {offered}. Load the component with "
            "redirect_peer=False to use an installed tesseract-core instead.",
            name=name,
        )
    return importlib.import_module(PEER_MODULES[name])


class _PeerPackage(ModuleType):
    """A package of the peer as the component's code sees it: attributes and submodules of ours."""

    def __getattr__(self, attribute: str) -> Any:
        qualified = f"{self.__name__}.{attribute}"
        if qualified in PEER_MODULES or qualified == "tesseract_core.runtime":
            return _PeerPackage(qualified)
        if self.__name__ in PEER_MODULES:
            return getattr(_stand_in(self.__name__), attribute)
        raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}")
