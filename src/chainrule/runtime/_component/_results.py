"""What an author's derivative function has to return, checked block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticCustomError

from chainrule._codec import SparseArray
from chainrule._errors import ComponentError
from chainrule.runtime._component._plain import to_plain
from chainrule.runtime._component._requests import Blocks, fit_array
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._derivatives._kinds import DerivativeKind
from chainrule.runtime._schema import ArraySpec, describe_value

_STRICT = {"strict_shapes": True}


def read_derivative(kind: DerivativeKind, blocks: Blocks, result: Any) -> dict[str, Any]:
    """The result of a derivative function, its keys and blocks checked, in the request's order.

    Raises:
        ComponentError: keys are missing or unknown, or a block has the wrong shape or dtype
            (`bad_output`).
    """
    sides = [blocks.over(side) for side in kind.result_over]
    return _read_level(kind.endpoint, result, sides, ())


def read_value(
    kind: DerivativeKind, schemas: Schemas, result: Any, context: Context
) -> tuple[Any, Any]:
    """The outputs as a plain tree, and the derivative that a function returned with them.

    A command, or another component's answer, has them under their names.

    Raises:
        ComponentError: neither a pair nor these names, or outputs that do not fit their schema
            (`bad_output`).
    """
    if isinstance(result, Mapping) and result.keys() == {"outputs", "gradient"}:
        result = (result["outputs"], result["gradient"])
    if not isinstance(result, tuple) or len(result) != 2:
        raise _bad(
            f"{kind.endpoint} returned {describe_value(result)}, expected a pair (outputs, gradient)"
        )
    outputs, derivative = result
    return to_plain(schemas.read_outputs(outputs, kind.endpoint, context)), derivative


def _read_level(
    endpoint: str,
    result: Any,
    sides: Sequence[Mapping[str, ArraySpec]],
    outer: tuple[tuple[str, ArraySpec], ...],
) -> Any:
    if not sides:
        return _read_block(endpoint, result, outer)
    specs, *inner = sides
    where = "".join(f"[{path!r}]" for path, _ in outer)
    if not isinstance(result, Mapping):
        raise _bad(
            f"{endpoint} returned {describe_value(result)}{where}, expected a dict keyed by path"
        )
    if result.keys() != specs.keys():
        missing = sorted(specs.keys() - result.keys())
        extra = sorted(map(str, result.keys() - specs.keys()))
        raise _bad(
            f"{endpoint} returned other keys{where} than it was asked for: missing "
            f"{missing or 'none'}, unexpected {extra or 'none'}"
        )
    return {
        path: _read_level(endpoint, result[path], inner, (*outer, (path, spec)))
        for path, spec in specs.items()
    }


def _read_block(endpoint: str, value: Any, levels: tuple[tuple[str, ArraySpec], ...]) -> Any:
    spec = _block_spec([spec for _, spec in levels])
    where = "".join(f"[{path!r}]" for path, _ in levels)
    if isinstance(value, SparseArray):
        _check_sparse(endpoint, where, value, spec)
        return value
    try:
        return fit_array(value, spec, _STRICT)
    except PydanticCustomError as error:
        raise _bad(f"{endpoint} returned a wrong array at {where}: {error.message()}") from error


def _block_spec(specs: list[ArraySpec]) -> ArraySpec:
    """A block's shape is that of its paths, one after the other; one path alone also gives the dtype."""
    if len(specs) == 1:
        return replace(specs[0], units=None)
    shapes = [spec.shape for spec in specs]
    joined = None if None in shapes else tuple(d for shape in shapes for d in shape or ())
    return ArraySpec(joined, None)


def _check_sparse(endpoint: str, where: str, value: SparseArray, spec: ArraySpec) -> None:
    fits = spec.shape is None or (
        len(value.shape) == len(spec.shape)
        and all(e in (None, s) for s, e in zip(value.shape, spec.shape, strict=True))
    )
    if not fits:
        raise _bad(
            f"{endpoint} returned a sparse block of shape {value.shape} at {where}, expected {spec}"
        )


def _bad(message: str) -> ComponentError:
    return ComponentError(f"{message}.", code="bad_output")
