"""`from_onnx`: a component of an ONNX model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field, create_model

from chainrule._doors import as_identifier
from chainrule._errors import DefinitionError, missing_dependency
from chainrule.runtime._component._definition import Definition, Implementation, hash_files
from chainrule.runtime._component._derivation import Derivatives, finite_implementations
from chainrule.runtime._component._functions import recipe_implementations
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._schema import array_type
from chainrule.runtime._schema._spec import make_spec

_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_OPEN_SIZE = 2
"""Of dimensions that are open, in the comparison with onnxruntime."""


def from_onnx(
    path: str | Path,
    *,
    derivatives: Derivatives | Literal["jax"] = "jax",
    name: str | None = None,
    config: ComponentConfig | Mapping[str, Any] | None = None,
) -> LocalComponent:
    """Make a component of an ONNX model: results from onnxruntime, derivatives from its graph in JAX.

    Before derivatives are offered, the graph in JAX is compared with onnxruntime on random inputs.

    Args:
        path: of the file.
        derivatives: `"jax"`, an option of `@component` for finite differences, or `None`.
        name: of the component; that of the file by default.
        config: settings of the component.

    Returns:
        A component. Without derivatives, and with a `RuntimeWarning` that says why, if the graph has
        operators that are not supported in JAX, or gives other results there.

    Raises:
        DefinitionError: the file is no model (`bad_onnx`).
        CapabilityError: a package is missing (`missing_dependency`).
    """
    path = Path(path)
    session = _session(path)
    inputs, outputs = _Side(session.get_inputs(), path), _Side(session.get_outputs(), path)
    schemas = inputs.schema("InputSchema"), outputs.schema("OutputSchema")
    implementations = {"apply": Implementation(partial(_apply, session, inputs, outputs))}
    traceable = None
    if derivatives == "jax":
        traceable = _in_jax(path, session, inputs, outputs)
        if traceable is not None:
            implementations |= recipe_implementations("jax", traceable)
    elif derivatives is not None:
        apply = implementations["apply"].function
        implementations |= finite_implementations(apply, derivatives, *schemas)
    definition = Definition(
        name=name or path.stem,
        description=f"The ONNX model {path.name}.",
        input_schema=schemas[0],
        output_schema=schemas[1],
        implementations=implementations,
        function=implementations["apply"].function,
        content_hash=hash_files([("onnx", path)]),
        jax_function=traceable,
        framework="onnx",
    )
    return LocalComponent(definition, config)


def _session(path: Path) -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise missing_dependency("ONNX models need", error.name, "'chainrule[onnx]'") from error
    if not path.is_file():
        raise DefinitionError(f"There is no file {path}.", code="bad_onnx")
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise DefinitionError(f"{path} cannot be loaded: {error}", code="bad_onnx") from error


class _Side:
    """Inputs or outputs of a model: name → field and declaration."""

    def __init__(self, found: Sequence[Any], path: Path) -> None:
        self.names = {as_identifier(each.name): each.name for each in found}
        unusable = [f for f in self.names if not f or not f[0].isalpha() or f.startswith("model_")]
        other = [each.type for each in found if each.type not in _TYPES]
        if len(self.names) < len(found) or unusable or other:
            raise DefinitionError(
                f"{path.name} has inputs or outputs that cannot be fields of a schema: "
                f"{', '.join(each.name for each in found)} ({', '.join(other) or 'names'}).",
                code="bad_onnx",
            )
        self.specs = {}
        for field, each in zip(self.names, found, strict=True):
            sizes = [d if isinstance(d, int) else _dimension(d) for d in each.shape]
            spec = make_spec(tuple(sizes), _TYPES[each.type])
            is_float = _TYPES[each.type].startswith("float")
            self.specs[field] = spec.with_differentiable() if is_float else spec

    def schema(self, title: str) -> type[BaseModel]:
        fields: dict[str, Any] = {
            field: (array_type(spec), Field(description=self.names[field]))
            for field, spec in self.specs.items()
        }
        return create_model(title, **fields)

    def to_names(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[field] for field, name in self.names.items()}

    def random(self) -> dict[str, np.ndarray]:
        """Some values; small integers, as many of them are indices."""
        generator = np.random.default_rng(0)
        found = {}
        for field, spec in self.specs.items():
            shape = tuple(_OPEN_SIZE if size is None else size for size in spec.shape or ())
            is_float = str(spec.dtype).startswith("float")
            drawn = (
                generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
            )
            found[field] = drawn.astype(spec.dtype)
        return found


def _dimension(name: Any) -> str | None:
    found = as_identifier(name or "")
    return found if found.isidentifier() else None


def _apply(session: Any, inputs: _Side, outputs: _Side, given: Any) -> dict[str, Any]:
    feeds = {n: np.asarray(v) for n, v in inputs.to_names(vars(given)).items()}
    return dict(zip(outputs.names, session.run(list(outputs.names.values()), feeds), strict=True))


def _in_jax(path: Path, session: Any, inputs: _Side, outputs: _Side) -> Any:
    """The model as a function of a tree in JAX; `None` if there is none that agrees with onnxruntime."""
    import onnx

    from chainrule.runtime._onnx._graph import Graph

    graph = Graph.of_model(onnx.load(str(path)))
    if graph.unknown:
        _warn(path, f"it uses operators that have none here: {', '.join(graph.unknown)}")
        return None

    def traceable(tree: Mapping[str, Any]) -> dict[str, Any]:
        found = graph(inputs.to_names(tree))
        return {field: found[name] for field, name in outputs.names.items()}

    problem = _disagreement(session, traceable, inputs, outputs)
    if problem is None:
        return traceable
    _warn(path, problem)
    return None


def _disagreement(session: Any, traceable: Any, inputs: _Side, outputs: _Side) -> str | None:
    import jax

    try:
        example = inputs.random()
    except MemoryError as error:
        return f"inputs to compare with have no room in memory: {error}"
    try:
        names = list(outputs.names.values())
        expected = session.run(names, inputs.to_names(example))
    except Exception as error:
        return f"onnxruntime refuses inputs to compare with: {error}"
    try:
        with jax.enable_x64(True):
            found = jax.jit(traceable)(example)
    except NotImplementedError as error:
        return f"it cannot be evaluated in JAX: {error}"
    for field, value in zip(outputs.names, expected, strict=True):
        ours = np.asarray(found[field])
        precision = np.finfo(value.dtype).eps if value.dtype.kind == "f" else 0.0
        scale = max(float(np.max(np.abs(value), initial=0)), 1.0)
        if ours.shape != value.shape or not np.allclose(ours, value, atol=1e3 * precision * scale):
            return f"its output {field} differs from that of onnxruntime"
    return None


def _warn(path: Path, reason: str) -> None:
    warnings.warn(
        f'{path.name} has no derivatives: {reason}. Pass derivatives="finite" for differences, or '
        "derivatives=None if none are needed.",
        RuntimeWarning,
        stacklevel=4,
    )
