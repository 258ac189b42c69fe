"""One way in for everything that can be a component."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from chainrule._errors import DefinitionError
from chainrule.runtime._component._isolation import load_module
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._component._module import define_from_file, define_from_module
from chainrule.runtime._component._precision import double_precision, was_loaded_narrow
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
        source: a path to a module file (`tesseract_api.py`), to its folder, or to a command description
            (`component.yaml`); `path.py:name` for a component or function inside a file; an imported
            module; a function with annotated arguments; or a component.
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
        from chainrule.runtime._component._function import component

        return component(source, config=config)
    raise DefinitionError(
        f"Cannot make a component from {type(source).__name__}: expected a path, a module, a function "
        "with annotated arguments, or a component.",
        code="bad_source",
    )


def _load_path(text: str, config: Config, redirect_peer: bool) -> LocalComponent:
    file, _, attribute = text.rpartition(":") if ".py:" in text else (text, "", "")
    path = Path(file)
    if attribute:
        return _load_attribute(path, attribute, config, redirect_peer)
    if path.is_dir():
        path = file_in(path)
    if path.suffix in (".yaml", ".yml"):
        from chainrule.runtime._component._command_file import define_from_command_file

        return LocalComponent(define_from_command_file(path), config)
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
    module = _load_module(path, config, redirect_peer)
    component = make(module)
    if component.declares_64_bits and was_loaded_narrow(module):
        with double_precision():
            component = make(_load_module(path, config, redirect_peer))
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


def file_in(folder: Path) -> Path:
    """The file of a folder that defines its component.

    Raises:
        DefinitionError: there is none (`module_missing`).
    """
    for name in ("tesseract_api.py", "component.py", "component.yaml"):
        if (folder / name).is_file():
            return folder / name
    raise DefinitionError(
        f"The folder {folder} has no tesseract_api.py, component.py or component.yaml. "
        "`chainrule init` writes one.",
        code="module_missing",
    )


def _load_attribute(
    path: Path, attribute: str, config: Config, redirect_peer: bool
) -> LocalComponent:
    def make(module: ModuleType) -> LocalComponent:
        if not hasattr(module, attribute):
            raise DefinitionError(
                f"{path.name} does not define {attribute!r}.", code="module_incomplete"
            )
        return load_component(getattr(module, attribute), config=config)

    return _from_file(path, config, redirect_peer, make)
