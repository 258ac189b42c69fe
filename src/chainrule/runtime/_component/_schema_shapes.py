"""Abstract evaluation from the schemas alone.

When every output is an array whose sizes are fixed, or named and thus known from the inputs, nobody needs
to run or trace anything to say what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from chainrule._trees import get_at_path
from chainrule.runtime._component._capabilities import Implementation, derived
from chainrule.runtime._component._models import spec_of
from chainrule.runtime._component._schemas import Schemas
from chainrule.runtime._schema import ArraySpec, ShapeDType, array_leaves


def with_abstract_eval(
    given: Mapping[str, Implementation], schemas: Schemas
) -> Mapping[str, Implementation]:
    """What was given, and abstract evaluation when the schemas imply it."""
    if "abstract_eval" in given:
        return given
    implied = shapes_from_schema(schemas)
    return given if implied is None else {**given, "abstract_eval": derived(implied, "schema")}


def shapes_from_schema(schemas: Schemas) -> Callable[[BaseModel], Any] | None:
    """The abstract evaluation that the schemas imply, or `None` when they leave something open."""
    outputs = {
        name: spec_of(f.annotation) for name, f in schemas.output_schema.model_fields.items()
    }
    specs = {name: spec for name, spec in outputs.items() if spec is not None}
    if not outputs or len(specs) < len(outputs) or "root" in outputs:
        return None
    named_inputs = {
        path: spec
        for path, spec in array_leaves(schemas.input_schema).items()
        if spec.dimension_names and "[]" not in path and "{}" not in path
    }
    known = {name for spec in named_inputs.values() for name in spec.dimension_names if name}
    if not all(_is_determined(spec, known) for spec in specs.values()):
        return None

    def abstract_eval(abstract_inputs: BaseModel) -> dict[str, ShapeDType]:
        sizes = _sizes(abstract_inputs, named_inputs)
        return {name: _shape_dtype(spec, sizes) for name, spec in specs.items()}

    return abstract_eval


def _is_determined(spec: ArraySpec, known: set[str]) -> bool:
    return (
        spec.shape is not None
        and spec.dtype is not None
        and all(isinstance(d, int) or d in known for d in spec.labelled_shape)
    )


def _sizes(abstract_inputs: BaseModel, named: Mapping[str, ArraySpec]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for path, spec in named.items():
        shape = get_at_path(abstract_inputs, path).shape
        sizes |= {n: size for n, size in zip(spec.dimension_names, shape, strict=True) if n}
    return sizes


def _shape_dtype(spec: ArraySpec, sizes: Mapping[str, int]) -> ShapeDType:
    shape = tuple(d if isinstance(d, int) else sizes[str(d)] for d in spec.labelled_shape)
    return ShapeDType.model_validate({"shape": shape, "dtype": spec.dtype})
