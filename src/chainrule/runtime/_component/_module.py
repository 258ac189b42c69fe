"""Components from module files: `InputSchema`, `OutputSchema`, `apply` and whatever else is defined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from chainrule._errors import DefinitionError
from chainrule.runtime._component._author import is_jitted
from chainrule.runtime._component._capabilities import (
    DERIVATIVE_ENDPOINTS,
    ENDPOINTS,
    Implementation,
)
from chainrule.runtime._component._definition import Definition
from chainrule.runtime._component._hashing import hash_files, hash_parts
from chainrule.runtime._component._isolation import loaded_sources
from chainrule.runtime._component._project_file import read_project_file

_REQUIRED = ("InputSchema", "OutputSchema", "apply")
_SHORT_NAMES = {
    "jac": "jacobian",
    "jvp": "jacobian_vector_product",
    "vjp": "vector_jacobian_product",
    "hvp": "hessian_vector_product",
}
"""What the command line calls derivative endpoints; a module calls them by their long names."""


def define_from_file(module: ModuleType, path: Path) -> Definition:
    """The component that a module loaded from a file defines."""
    facts = read_project_file(path.parent)
    is_generic = path.stem in ("tesseract_api", "component")
    stem = path.parent.resolve().name if is_generic else path.stem
    return _define(
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
    return _define(
        module,
        name=name.rpartition(".")[2],
        version=getattr(module, "__version__", "unknown"),
        description=(module.__doc__ or "").strip(),
        content_hash=hash_files([(name, Path(file))]) if file else hash_parts([(name, b"")]),
    )


def _define(module: Any, **facts: Any) -> Definition:
    missing = [name for name in _REQUIRED if not hasattr(module, name)]
    if missing:
        raise DefinitionError(
            f"The module {facts['name']} does not define {', '.join(missing)}. A component needs "
            "InputSchema and OutputSchema (subclasses of pydantic.BaseModel) and apply(inputs).",
            code="module_incomplete",
            details={"missing": missing},
        )
    _refuse_short_names(module)
    implementations = {
        name: Implementation(getattr(module, name)) for name in ENDPOINTS if hasattr(module, name)
    }
    jax_function = _find_jax_function(module)
    own: list[str] = []
    if jax_function is not None:
        from chainrule.runtime._component._frameworks import recipe_implementations
        from chainrule.runtime._component._jax_derivatives import own_derivatives
        from chainrule.runtime._derivatives import FIRST_ORDER

        own = own_derivatives(module, jax_function)
        free = recipe_implementations("jax", jax_function)
        if set(own) & {kind.endpoint for kind in FIRST_ORDER}:
            # What is missing has to follow from what the author thought of.
            free = {name: free[name] for name in free if name not in DERIVATIVE_ENDPOINTS}
        implementations = free | implementations
    return Definition(
        input_schema=module.InputSchema,
        output_schema=module.OutputSchema,
        implementations=implementations,
        function=module.apply,
        jax_function=jax_function,
        jax_derivatives=not own,
        batching=getattr(module, "batching", None),
        merge_up_to=getattr(module, "merge_up_to", 0),
        **facts,
    )


def _refuse_short_names(module: Any) -> None:
    """Say that a function is no endpoint, rather than ignore a derivative that its author wrote."""
    for short, endpoint in _SHORT_NAMES.items():
        function = getattr(module, short, None)
        is_own = getattr(function, "__module__", None) == getattr(module, "__name__", "")
        if is_own and callable(function) and not hasattr(module, endpoint):
            raise DefinitionError(
                f"The module defines {short}, which is not the name of an endpoint: call it {endpoint}. "
                f"If it is a helper, call it _{short}.",
                code="bad_endpoint",
                details={"endpoint": endpoint},
            )


def _find_jax_function(module: Any) -> Callable[[Any], Any] | None:
    declared = getattr(module, "jax_function", None)
    if declared is not None or not any(is_jitted(value) for value in vars(module).values()):
        return declared
    from chainrule.runtime._component._jax_modules import function_behind_apply

    return function_behind_apply(module)
