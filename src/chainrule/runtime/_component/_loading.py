"""Load components: one function for everything that can be a component.

`load_component` takes a module file with `InputSchema`, `OutputSchema` and `apply`, its folder, a command
description (`component.yaml`), an FMU, an ONNX model, an imported module, a function or a component.
`check_sources` finds mistakes in the syntax of files without running them.
"""

from __future__ import annotations

import ast
import importlib
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from chainrule._call_prices import PRICED
from chainrule._content_store import hash_parts
from chainrule._describe import did_you_mean, did_you_mean_file
from chainrule._endpoints import DERIVATIVE_ENDPOINTS, ENDPOINTS, FIRST_ORDER, HVP, JVP, VJP
from chainrule._errors import DefinitionError
from chainrule.runtime._component._definition import (
    Definition,
    Implementation,
    hash_files,
    is_jitted,
)
from chainrule.runtime._component._devices import Place, find_place, on_device
from chainrule.runtime._component._isolation import (
    imports_jax,
    is_peer_redirected,
    load_module,
    loaded_sources,
    without_package,
)
from chainrule.runtime._component._local import LocalComponent, double_precision, is_narrow
from chainrule.runtime._component._plots import plot_of
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._runs import Run, activate

Source = str | Path | ModuleType | Callable[..., Any] | LocalComponent
Config = ComponentConfig | Mapping[str, Any] | None


def load_component(
    source: Source,
    *,
    config: Config = None,
    redirect_peer: bool = True,
) -> LocalComponent:
    """Make a component from a file, a module, a function or a component that exists.

    Args:
        source: a path to a module file (`tesseract_api.py`), to its folder, to a command description
            (`component.yaml`), to an FMU or an ONNX model; `path.py:name` for a component or function inside
            a file; an imported module; a function with annotated arguments; or a component.
        config: settings of this component.
        redirect_peer: resolve `tesseract_core.runtime…` imports of a file to Chainrule.

    Raises:
        DefinitionError: the source cannot be loaded or is not a complete component.

    Example:
        >>> def double(x: float) -> float:
        ...     return 2 * x
        >>> load_component(double).apply({"x": 3.0})
        {'result': 6.0}
    """
    if isinstance(source, LocalComponent):
        return source if config is None else LocalComponent(source._definition, config)
    if isinstance(source, (str, Path)):
        return _load_path(str(source), config, redirect_peer)
    if isinstance(source, ModuleType):
        return LocalComponent(define_from_module(source), config)
    if callable(source):
        from chainrule.runtime._component._functions import component

        return component(source, config=config)
    raise DefinitionError(
        f"Cannot make a component from {type(source).__name__}: expected a path, a module, a function "
        "with annotated arguments, or a component.",
        code="bad_source",
    )


def _load_path(text: str, config: Config, redirect_peer: bool) -> LocalComponent:
    path, attribute = split_source(text)
    if not path.exists():
        raise DefinitionError(
            f"There is no component at {path}.{did_you_mean_file(path, COMPONENT_FILES)} Expected a module "
            "file, its folder, file.py:name, a component.yaml, an FMU or an ONNX model; `chainrule init` "
            "starts one.",
            code="module_missing",
            details={"file": str(path)},
        )
    if attribute:
        return _load_attribute(path, attribute, config, redirect_peer)
    if path.is_dir():
        path = file_in(path)
    if path.suffix in (".yaml", ".yml"):
        from chainrule.runtime._component._commands import define_from_command_file

        return LocalComponent(define_from_command_file(path), config)
    if path.suffix == ".fmu":
        from chainrule.runtime._fmi._open import from_fmu

        return from_fmu(path, config=config)
    if path.suffix == ".onnx":
        from chainrule.runtime._onnx._open import from_onnx

        return from_onnx(path, config=config)
    return _from_file(path, config, redirect_peer, partial(_component_in, path=path, config=config))


def _component_in(module: ModuleType, *, path: Path, config: Config) -> LocalComponent:
    """The component that a file defines, or the one that it decorates."""
    if not hasattr(module, "InputSchema"):
        decorated = [name for name, v in vars(module).items() if isinstance(v, LocalComponent)]
        if decorated:
            return load_component(_only(module, decorated, path), config=config)
    return LocalComponent(define_from_file(module, path), config)


def _from_file(
    path: Path,
    config: Config,
    redirect_peer: bool,
    make: Callable[[ModuleType], LocalComponent],
) -> LocalComponent:
    """Run a file and make its component, with x64 where a component that uses JAX declares 64 bits.

    Only the file that has run says what it declares. By then JAX may have computed in 32 bits (an array, the
    weights of a model, a number from `float(jnp.sqrt(2.0))`), so the file runs again.
    """
    module = _load_module(path, config, redirect_peer)
    narrow = make(module)
    if not narrow.declares_64_bits or not is_narrow() or not imports_jax(module):
        return narrow
    with double_precision():
        component = make(_load_module(path, config, redirect_peer))
    component.trace_in_32_bits_as(narrow)
    return component


def _load_module(path: Path, config: Config, redirect_peer: bool) -> ModuleType:
    """Run the file with its settings in force: it may call `require_file` at once."""
    with activate(Run(ComponentConfig.make(config), is_flat=True)):
        return load_module(path, redirect_peer=redirect_peer)


def _only(module: ModuleType, names: list[str], path: Path) -> LocalComponent:
    if len(names) > 1:
        raise DefinitionError(
            f"{path.name} has several components; name one of them: "
            + ", ".join(f"{path.name}:{name}" for name in names),
            code="component_ambiguous",
        )
    return getattr(module, names[0])


COMPONENT_FILES = ("tesseract_api.py", "component.py", "component.yaml")
"""Names of the file that defines the component of a folder; the first that is there does."""


def split_source(text: str) -> tuple[Path, str]:
    """The file or folder of a source, and the name that `file.py:name` gives; empty without one."""
    file, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    return Path(file), name


def file_in(folder: Path) -> Path:
    """The file of a folder that defines its component.

    Raises:
        DefinitionError: no such module (`module_missing`).
    """
    for name in COMPONENT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise DefinitionError(
        f"The folder {folder} has none of {', '.join(COMPONENT_FILES)}. "
        "`chainrule init` writes one.",
        code="module_missing",
    )


def _load_attribute(
    path: Path, attribute: str, config: Config, redirect_peer: bool
) -> LocalComponent:
    def make(module: ModuleType) -> LocalComponent:
        if not hasattr(module, attribute):
            raise DefinitionError(
                f"{path.name} does not define {attribute!r}.{did_you_mean(attribute, vars(module))}",
                code="module_incomplete",
            )
        return load_component(getattr(module, attribute), config=config)

    return _from_file(path, config, redirect_peer, make)


def reference_to(component: LocalComponent) -> tuple[Any, ...]:
    """How a pickle names a component, and opens it again: by module and name, or by its file.

    Raises:
        PicklingError: it has no such place: it was made inside a function, or from a command.
    """
    function = component._definition.function  # it knows the module it was written in
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = None if module is None else _name_in(module, component._definition)
    if module is None or name is None:
        raise pickle.PicklingError(
            f"Cannot pickle the component {component.name}: a pickle holds the module and the name by which "
            "a component can be imported, and it is not found under any name of the module "
            f"{getattr(function, '__module__', None)!r}. Define it at the top level of a module, or open it "
            "from a file with Component.from_api(path)."
        )
    if without_package(module.__name__) == module.__name__:
        return _load_imported, (module.__name__, name, component.config)
    # A private package has a number that counts in this process only, but its file is the same in others.
    source = f"{module.__file__}:{name}" if name else module.__file__
    return _load_again, (source, component.config, is_peer_redirected(module))


def _name_in(module: ModuleType, definition: Definition) -> str | None:
    """The name of a component in a module, with any settings; empty if it is the module itself."""
    for name in (getattr(definition.function, "__qualname__", ""), *vars(module)):
        try:
            found = attrgetter(name)(module)
        except AttributeError:
            continue
        if isinstance(found, LocalComponent) and found._definition is definition:
            return name
    parts = (
        definition.input_schema,
        definition.output_schema,
        definition.implementations["apply"].function,
    )
    is_module = parts == tuple(getattr(module, name, None) for name in _REQUIRED)
    return "" if is_module else None


def _load_imported(module: str, name: str, config: ComponentConfig) -> LocalComponent:
    imported = importlib.import_module(module)
    found = attrgetter(name)(imported) if name else imported
    if isinstance(found, LocalComponent) and found.config == config:
        return found
    return load_component(found, config=config)


def _load_again(source: str, config: ComponentConfig, redirect_peer: bool) -> LocalComponent:
    return load_component(source, config=config, redirect_peer=redirect_peer)


_REQUIRED = ("InputSchema", "OutputSchema", "apply")
_SHORT_NAMES = {kind.short: kind.endpoint for kind in (*FIRST_ORDER, HVP)}
"""How derivative endpoints are abbreviated; a module calls them by their long names."""


def define_from_file(module: ModuleType, path: Path) -> Definition:
    """The component that a module loaded from a file defines."""
    facts = read_project_file(path.parent)
    is_generic = path.stem in ("tesseract_api", "component")
    stem = path.parent.resolve().name if is_generic else path.stem
    return _define_module(
        module,
        name=str(facts.get("name") or stem),
        version=str(facts.get("version") or getattr(module, "__version__", "unknown")),
        description=str(facts.get("description") or (module.__doc__ or "").strip()),
        content_hash=hash_files(loaded_sources(module).items()),
    )


def define_from_module(module: ModuleType) -> Definition:
    """The component that an imported module, or any object with the same attributes, defines."""
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", type(module).__name__)
    return _define_module(
        module,
        name=name.rpartition(".")[2],
        version=getattr(module, "__version__", "unknown"),
        description=(module.__doc__ or "").strip(),
        content_hash=hash_files([(name, Path(file))]) if file else hash_parts([(name, b"")]),
    )


def _define_module(module: Any, **facts: Any) -> Definition:
    missing = [name for name in _REQUIRED if not hasattr(module, name)]
    if missing:
        raise DefinitionError(
            f"The module {facts['name']} does not define {', '.join(missing)}. A component needs "
            "InputSchema and OutputSchema (subclasses of pydantic.BaseModel) and apply(inputs).",
            code="module_incomplete",
            details={"missing": missing},
        )
    _refuse_wrong_names(module)
    implementations = {
        name: Implementation(getattr(module, name)) for name in ENDPOINTS if hasattr(module, name)
    }
    derivatives = _declared_derivatives(module, implementations)
    jax_function = _find_jax_function(module)
    own: list[str] = []
    if jax_function is not None:
        from chainrule.runtime._component._functions import recipe_implementations
        from chainrule.runtime._component._jax_modules import own_derivatives

        own = own_derivatives(module, jax_function)
        free = recipe_implementations("jax", jax_function)
        if set(own) & {kind.endpoint for kind in FIRST_ORDER}:
            # What is missing has to follow from the derivative that the author wrote.
            free = {name: free[name] for name in free if name not in DERIVATIVE_ENDPOINTS}
        implementations = free | implementations
    place = _declared_place(module)
    implementations = dict(on_device(implementations, place))
    sparsity = _declared_sparsity(module)
    if derivatives is not None:
        from chainrule.runtime._component import _derivation

        schemas = module.InputSchema, module.OutputSchema
        apply = implementations["apply"].function
        implementations |= _derivation.finite_implementations(apply, derivatives, *schemas)
        sparsity = sparsity or _derivation.sparsity_of(derivatives)
    return Definition(
        input_schema=module.InputSchema,
        output_schema=module.OutputSchema,
        implementations=implementations,
        function=module.apply,
        jax_function=jax_function,
        jax_derivatives=not own and derivatives is None,
        batching=getattr(module, "batching", None),
        merge_up_to=getattr(module, "merge_up_to", 0),
        prices=_declared_prices(module),
        sparsity=sparsity,
        cheap=getattr(module, "cheap", False) is True,
        plot=plot_of(module),
        place=place,
        framework=_declared_framework(module, jax_function is not None),
        **facts,
    )


def _declared_derivatives(module: Any, given: Collection[str]) -> Any:
    """The module's `derivatives`, if it is what `component` takes: other things may have that name.

    Raises:
        DefinitionError: the author wrote a derivative, too (`bad_derivatives`).
    """
    declared = getattr(module, "derivatives", None)
    if not isinstance(declared, (str, Mapping)):
        return None
    own = [kind.endpoint for kind in FIRST_ORDER if kind.endpoint in given]
    if own:
        raise DefinitionError(
            f"The module defines {own[0]} and `derivatives`. The other derivatives follow from {own[0]}: "
            "leave out `derivatives`, or the function.",
            code="bad_derivatives",
        )
    return declared


def _declared_place(module: Any) -> Place | None:
    """Where a module computes that declares both names; other things are called `device`, too."""
    framework, device = getattr(module, "framework", None), getattr(module, "device", None)
    if isinstance(framework, str) and isinstance(device, str):
        return find_place(framework, device, getattr(module, "keeps_inputs", True))
    return None


def _declared_framework(module: Any, is_jax: bool) -> str | None:
    """The module's `framework`, if it is one of those that `component` takes."""
    declared = getattr(module, "framework", None)
    if isinstance(declared, str):  # other things may have that name, too
        from chainrule.runtime._component._functions import Framework

        if declared in get_args(Framework):
            return declared
    return "jax" if is_jax else None


def _declared_prices(module: Any) -> Mapping[str, float]:
    """The module's `prices`, if they are those of calls: a module about money may have others."""
    declared = getattr(module, "prices", None)
    if isinstance(declared, Mapping) and not set(PRICED).isdisjoint(declared):
        return declared
    return {}


def _declared_sparsity(module: Any) -> Mapping[str, Mapping[str, Any]]:
    """The module's `sparsity`, if it is a dictionary of dictionaries: other things may have that name."""
    declared = getattr(module, "sparsity", None)
    if isinstance(declared, Mapping) and all(isinstance(row, Mapping) for row in declared.values()):
        return declared
    return {}


def _refuse_wrong_names(module: Any) -> None:
    """Say that a function is not an endpoint, rather than ignore a derivative that its author wrote."""
    for name, function in vars(module).items():
        endpoint = _SHORT_NAMES.get(name) or _misspelled(name)
        is_own = getattr(function, "__module__", None) == getattr(module, "__name__", "")
        if endpoint and is_own and callable(function) and not hasattr(module, endpoint):
            raise DefinitionError(
                f"The module defines {name}, which is not the name of an endpoint: call it {endpoint}. "
                f"If it is a helper, call it _{name}.",
                code="bad_endpoint",
                details={"endpoint": endpoint},
            )


def _misspelled(name: str) -> str | None:
    """The endpoint whose long name a name nearly is. `jacobian` is too short: a helper may be `jacobians`."""
    if name.startswith("_") or name in ENDPOINTS:
        return None
    long = [kind.endpoint for kind in (JVP, VJP, HVP)]
    return next(iter(get_close_matches(name, long, n=1, cutoff=0.9)), None)


def _find_jax_function(module: Any) -> Callable[[Any], Any] | None:
    declared = getattr(module, "jax_function", None)
    if declared is not None or not any(is_jitted(value) for value in vars(module).values()):
        return declared
    from chainrule.runtime._component._jax_modules import function_behind_apply

    return function_behind_apply(module)


def read_project_file(folder: Path) -> dict[str, Any]:
    """The mapping in the project file; empty when there is none.

    Raises:
        DefinitionError: the file is not a YAML mapping (`bad_project_file`).
    """
    names = ("component.yaml", "tesseract_config.yaml")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    return {} if file is None else read_mapping(file)


def read_mapping(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        DefinitionError: it is something else (`bad_project_file`).
    """
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise _bad_project_file(file, f"is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise _bad_project_file(file, f"has to be a mapping; found {type(content).__name__}")
    return content


def _bad_project_file(file: Path, reason: str) -> DefinitionError:
    return DefinitionError(f"{file} {reason}.", code="bad_project_file")


# Statements and literals that have changed since Python 3.11: type aliases and parameters, what stands in
# an f-string, t-strings, `except` without parentheses.
_CHANGED = re.compile(
    r"""^\s*type\s|\b(def|class)\s+\w+\s*\[|\b[rR]?[fFtT][rR]?["']|\bexcept\b.*,"""
)


def check_sources(source: Path, *, other_python: bool = False) -> None:
    """Compile the file of a component, and those of its neighbours that it imports, without running them.

    Args:
        source: the file, or the folder of the component; what is not Python is left alone.
        other_python: let through what only a newer Python may take: another interpreter will run it.

    Raises:
        DefinitionError: a file cannot be read or is not Python (`module_failed`, with the line), or the
            folder has no component (`module_missing`).
    """
    file = file_in(source) if source.is_dir() else source
    if file.suffix != ".py":
        return
    pending, seen = [file], set[Path]()
    while pending:
        source = pending.pop()
        if source in seen:
            continue
        seen.add(source)
        try:
            tree = _compile(source)
        except (OSError, SyntaxError, ValueError) as error:
            if not (other_python and _may_be_newer(error)):
                raise _syntax_error(source, error) from error
        else:
            pending += _imported(tree, source.parent, file.parent)


def _compile(file: Path) -> ast.Module:
    content = file.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they come again, once, when the file is run
        compile(content, file, "exec", dont_inherit=True)
        return ast.parse(content, file)


def _syntax_error(file: Path, error: Exception) -> DefinitionError:
    if isinstance(error, OSError):
        what, line = f"{file} cannot be read: {error.strerror}.", None
    else:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        what = f"{where}: {type(error).__name__}: {getattr(error, 'msg', None) or error}."
    details = {"file": str(file), "line": line, "exception": type(error).__name__}
    return DefinitionError(what, code="module_failed", details=details)


def _may_be_newer(error: Exception) -> bool:
    if not isinstance(error, SyntaxError):
        return False
    return error.msg.startswith("f-string") or bool(_CHANGED.search(error.text or ""))


def _imported(tree: ast.Module, here: Path, root: Path) -> Iterator[Path]:
    """Files in the component's folder that a module imports in any case; other names are packages."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            names, base = [alias.name for alias in node.names], root
        elif isinstance(node, ast.ImportFrom):
            start = f"{node.module}." if node.module else ""
            names = [start + alias.name for alias in node.names]
            base = here.joinpath(*[".."] * (node.level - 1)).resolve() if node.level else root
        else:
            continue
        for name in names:
            top, *rest = name.split(".")
            if base != root or top not in sys.stdlib_module_names:
                yield from _files_on_the_way(base, [top, *rest])


def _files_on_the_way(folder: Path, parts: list[str]) -> Iterator[Path]:
    """The packages on the way to a module, and the module."""
    for part in parts:
        for file in (folder / f"{part}.py", folder / part / "__init__.py"):
            if file.is_file():
                yield file
        folder /= part
