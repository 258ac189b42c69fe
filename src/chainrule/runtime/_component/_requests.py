"""What a derivative request names: paths that exist and are differentiable, and vectors that fit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from chainrule._errors import InputError, PathError
from chainrule._paths import matches_pattern, path_to_pattern
from chainrule._trees import flatten_with_paths, get_at_path, is_arraylike
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._derivatives._kinds import BATCHED, DerivativeKind, Side, Vector
from chainrule.runtime._schema import ArraySpec, build_validator, describe_value


@dataclass(frozen=True)
class Blocks:
    """The selected paths of one derivative request, each with what is known of its array.

    Inputs are there, so their shapes are exact; of outputs the declaration is known, and the sizes of
    named dimensions that the inputs have, too.
    """

    inputs: Mapping[str, ArraySpec]
    outputs: Mapping[str, ArraySpec]

    def over(self, side: Side) -> Mapping[str, ArraySpec]:
        """The paths of one side."""
        return self.inputs if side == "inputs" else self.outputs

    def with_batch(self, length: int | None) -> Blocks:
        """The same arrays with a leading batch axis, of a length that may not be known yet."""
        return Blocks(
            {path: _widened(spec, length) for path, spec in self.inputs.items()},
            {path: _widened(spec, length) for path, spec in self.outputs.items()},
        )


def _widened(spec: ArraySpec, length: int | None) -> ArraySpec:
    if spec.shape is None:
        return spec
    names = (None, *spec.dimension_names) if spec.dimension_names else ()
    return replace(spec, shape=(length, *spec.shape), dimension_names=names)


def read_paths(
    kind: DerivativeKind, schemas: Schemas, inputs: BaseModel, payload: Mapping[str, Any]
) -> Blocks:
    """The paths that a request selects.

    Raises:
        PathError: a path is unknown, not differentiable, or names a value that is absent.
        InputError: no path at all, or not a list of texts (`bad_paths`).
    """
    declared = schemas.differentiable
    given, asked = payload.get(kind.inputs_argument), payload.get(kind.outputs_argument)
    if kind.all_paths and given is None:
        given = _present_paths(declared["inputs"], inputs)
    if kind.all_paths and asked is None:
        asked = _plain_paths(declared["outputs"], kind.outputs_argument)
    given = _declared_paths(given, kind.inputs_argument, declared["inputs"])
    asked = _declared_paths(asked, kind.outputs_argument, declared["outputs"])
    exact = {path: _exact(inputs, path, spec, kind.inputs_argument) for path, spec in given.items()}
    return Blocks(exact, asked)


def _present_paths(declared: Mapping[str, ArraySpec], inputs: BaseModel) -> list[str]:
    """All differentiable arrays that these inputs have."""
    return [
        path
        for path, leaf in flatten_with_paths(inputs).items()
        if is_arraylike(leaf) and any(matches_pattern(path, pattern) for pattern in declared)
    ]


def _plain_paths(declared: Mapping[str, ArraySpec], argument: str) -> list[str]:
    """All differentiable outputs, if the schema alone says which there are."""
    for pattern in declared:
        if "[]" in pattern or "{}" in pattern:
            raise InputError(
                f"{argument}: name the outputs to differentiate; how many there are at {pattern!r} is not "
                "known before the component runs.",
                code="bad_paths",
                path=argument,
            )
    return list(declared)


def _declared_paths(
    value: Any, argument: str, declared: Mapping[str, ArraySpec]
) -> dict[str, ArraySpec]:
    is_collection = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    paths = list(value) if is_collection else []
    if not paths or not all(isinstance(path, str) for path in paths):
        raise InputError(
            f"{argument}: expected a list of at least one path; this component has "
            f"{', '.join(declared) or 'none'}.",
            code="bad_paths",
            path=argument,
        )
    return {path: _declaration(path, argument, declared) for path in paths}


def _declaration(path: str, argument: str, declared: Mapping[str, ArraySpec]) -> ArraySpec:
    spec = declared.get(path) or declared.get(path_to_pattern(path))
    if spec is None:
        # Positions of fixed tuples keep their number in a pattern: `pairs.[].[0]`.
        spec = next((s for pattern, s in declared.items() if matches_pattern(path, pattern)), None)
    if spec is None:
        braced = _with_braces(path, declared)
        hint = f" Keys of a mapping stand in braces: {braced}." if braced else ""
        raise PathError(
            f"{argument}: {path!r} is not a differentiable array of this component. It has: "
            f"{', '.join(declared) or 'none'}.{hint}",
            code="path_not_differentiable",
            path=path,
            details={"argument": argument},
        )
    return spec


def _with_braces(path: str, patterns: Iterable[str]) -> str | None:
    """The path as it would be right, if keys of mappings are all that is written wrongly."""
    names = path.split(".")
    for pattern in patterns:
        parts = pattern.split(".")
        if len(parts) == len(names) and all(map(_stands_for, parts, names)):
            return ".".join(
                f"{{{name}}}" if part == "{}" else name
                for part, name in zip(parts, names, strict=True)
            )
    return None


def _stands_for(part: str, name: str) -> bool:
    return part == name or part == "{}" or (part == "[]" and name.startswith("["))


def _exact(inputs: BaseModel, path: str, spec: ArraySpec, argument: str) -> ArraySpec:
    value = get_at_path(inputs, path)
    if value is None:
        raise PathError(
            f"{argument}: {path!r} has no value in these inputs (it is null), so nothing "
            "can be differentiated with respect to it. Leave the path out, or give it a value.",
            code="path_is_none",
            path=path,
        )
    if not is_arraylike(value):
        raise PathError(
            f"{argument}: {path!r} is {describe_value(value)} in these inputs, not an array, so nothing "
            "can be differentiated with respect to it. Leave the path out.",
            code="path_not_differentiable",
            path=path,
        )
    return replace(
        spec, shape=np.shape(value), dtype=str(value.dtype), dimension_names=(), units=None
    )


def read_batched(kind: DerivativeKind, payload: Mapping[str, Any]) -> bool:
    """Whether the vectors of a request carry a leading batch axis.

    Raises:
        InputError: `batched` is neither true nor false (`bad_batched`).
    """
    value = payload.get(BATCHED, False)
    if not isinstance(value, bool):
        raise InputError(
            f"{kind.endpoint}: {BATCHED} is true or false; found {describe_value(value)}.",
            code="bad_batched",
            path=BATCHED,
        )
    return value


def read_vectors(
    kind: DerivativeKind, blocks: Blocks, payload: Mapping[str, Any], context: Context
) -> dict[str, dict[str, Any]]:
    """The tangents and cotangents of a request, by the names of their arguments.

    Raises:
        InputError: other keys than the selected paths (`vector_keys_mismatch`), or an array that does
            not fit its path.
    """
    return {
        vector.name: _read_vector(vector, blocks, payload[vector.name], context)
        for vector in kind.vectors
    }


def read_free_vector(
    vector: Vector, schemas: Schemas, inputs: BaseModel, value: Any, context: Context
) -> dict[str, Any]:
    """A tangent or cotangent whose keys are themselves the selection of paths.

    Raises:
        PathError: a path is unknown, not differentiable, or names a value that is absent.
        InputError: no path at all (`bad_paths`), or an array that does not fit its path.
    """
    paths = list(value) if isinstance(value, Mapping) else value
    specs = _declared_paths(paths, vector.name, schemas.differentiable[vector.over])
    if vector.over == "inputs":
        specs = {path: _exact(inputs, path, spec, vector.name) for path, spec in specs.items()}
    return _read_vector(vector, Blocks(specs, specs), value, context)


def _read_vector(vector: Vector, blocks: Blocks, value: Any, context: Context) -> dict[str, Any]:
    """One array per selected path, in the paths' shapes and dtypes."""
    specs = blocks.over(vector.over)
    if not isinstance(value, Mapping) or value.keys() != specs.keys():
        found = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise InputError(
            f"{vector.name}: expected exactly the keys {sorted(specs)}; found {found}.",
            code="vector_keys_mismatch",
            path=vector.name,
        )
    return {
        path: _vector_entry(vector.name, path, value[path], spec, context)
        for path, spec in specs.items()
    }


def _vector_entry(vector: str, path: str, value: Any, spec: ArraySpec, context: Context) -> Any:
    try:
        return fit_array(value, spec, {**context, "strict_shapes": True})
    except PydanticCustomError as error:
        raise InputError(
            f"{vector} at {path!r}: {error.message()}",
            code=(error.context or {}).get("code", error.type),
            path=path,
            details={
                "problems": [
                    {
                        "type": error.type,
                        "loc": [vector, path],
                        "path": path,
                        "msg": error.message(),
                        "ctx": error.context or {},
                    }
                ],
                "count": 1,
            },
        ) from error


def fit_array(value: Any, spec: ArraySpec, context: Mapping[str, Any]) -> Any:
    """An array validated against a declaration outside of any model.

    Raises:
        PydanticCustomError: it does not fit.
    """
    return build_validator(spec)(value, cast(Any, SimpleNamespace(context=context)))
