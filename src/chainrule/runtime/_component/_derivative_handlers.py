"""Handlers of the derivative endpoints and of `tagged_intermediates`.

A request names paths that have to exist and be differentiable, and vectors that have to fit them
(`read_paths`, `read_vectors`). A result has one block per pair of paths, checked block by block
(`read_derivative`).

A cotangent has the shape of its output, which a schema may leave open. A named dimension has its size from
the inputs. What is still open is asked of the author's `abstract_eval`, or else taken from an earlier result
of `apply` for the same kind of inputs (`OutputShapes`). Results of derivatives that the author wrote are
held to the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from chainrule._codec import SparseArray
from chainrule._describe import describe_value
from chainrule._endpoints import (
    ABSTRACT_EVAL,
    BATCHED,
    COTANGENT,
    TAGGED,
    TANGENT,
    DerivativeKind,
    Side,
    Vector,
    to_abstract,
)
from chainrule._errors import CapabilityError, ComponentError, InputError, PathError
from chainrule._lru_cache import LRUCache
from chainrule._own_arrays import own_copy
from chainrule._paths import matches_pattern, path_to_pattern
from chainrule._progress import unheard
from chainrule._trees import dtype_name, flatten_with_paths, get_at_path, is_arraylike
from chainrule.runtime._component._definition import check_signature, takes_argument
from chainrule.runtime._component._failures import call_author
from chainrule.runtime._component._handlers import Payload, Reading, check_fields
from chainrule.runtime._component._schemas import Context, Schemas, to_plain
from chainrule.runtime._derivatives._derive import batch_length, batched_product
from chainrule.runtime._schema import ArraySpec, build_validator

OpenShapes = Callable[["Blocks", Any], Iterable[tuple[int, ...]]]
"""The shapes that vectors, or a result, have where the size of an output is not known."""

ShapeOf = Callable[[str], tuple[int, ...] | None]
"""The shape of the output at a path, or `None` where it is not known."""


@dataclass(frozen=True)
class Derivative:
    """The handler of any of the derivative endpoints.

    Attributes:
        kind: which of them.
        schemas: of the component.
        function: the author's, or one that Chainrule made.
        can_batch: whether the function takes `batched`; it is called once per vector otherwise.
        shapes: says what is known of the outputs.
    """

    kind: DerivativeKind
    schemas: Schemas
    function: Callable[..., Any]
    can_batch: bool
    shapes: OutputShapes

    def __call__(self, payload: Payload, context: Context) -> Any:
        """The derivative as a plain tree keyed by paths."""
        kind, schemas = self.kind, self.schemas
        blocks, arguments = self._read_inputs(payload, context)
        if read_batched(kind, payload):
            return self._batch(blocks, arguments, payload, context)
        arguments |= self._read_vectors(blocks, payload, context)
        result = self._call(blocks, arguments)
        if not kind.with_value:
            return self._read_result(blocks, payload, result)
        value, gradient = read_value(kind, schemas, result, context)
        # The outputs are here: the cotangent that was given has to have their shapes.
        read_vectors(kind, blocks.with_outputs(_array_shapes(value).get), payload, context)
        return {"outputs": value, "gradient": read_derivative(kind, blocks, gradient)}

    def read(self, payload: Payload, context: Context) -> Reading:
        """The request, validated; not for batches of vectors, and not for a value with its derivative."""
        blocks, arguments = self._read_inputs(payload, context)
        arguments |= self._read_vectors(blocks, payload, context)
        return Reading((), arguments, partial(self._read_result, blocks, payload))

    def _read_inputs(self, payload: Payload, context: Context) -> tuple[Blocks, dict[str, Any]]:
        kind = self.kind
        check_fields(payload, kind.required_names, kind.endpoint, kind.optional_names)
        inputs = self.schemas.read_inputs(payload["inputs"], kind.endpoint, context)
        blocks = self._blocks(inputs, payload, context)
        arguments: dict[str, Any] = {
            "inputs": inputs,
            kind.inputs_argument: set(blocks.inputs),
            kind.outputs_argument: set(blocks.outputs),
        }
        return blocks, arguments

    def _call(self, blocks: Blocks, arguments: dict[str, Any]) -> Any:
        try:
            return call_author(self.function, self.kind.endpoint, **arguments)
        except InputError as error:
            given = [spec for each in self.kind.vectors for spec in blocks.over(each.over).values()]
            if error.code != "vector_shape_mismatch" or any(map(_is_open, given)):
                raise
            # The vectors have the shapes of inputs and outputs: another derivative, from which this one
            # follows, has not.
            raise _bad(
                f"{self.kind.endpoint} follows from a derivative of another shape than the inputs and "
                f"outputs: {error.message.removesuffix('.')}"
            ) from error

    def _blocks(
        self,
        inputs: BaseModel,
        payload: Payload,
        context: Context,
        *,
        ask: bool = False,
        anew: bool = False,
    ) -> Blocks:
        blocks = read_paths(self.kind, self.schemas, inputs, payload)
        outputs = self.shapes.named(blocks.outputs, context)
        known = Blocks(blocks.inputs, outputs)
        return self.shapes.exact(known, inputs, apply=not self.kind.with_value, ask=ask, anew=anew)

    def _fitted(
        self, read: Callable[[Blocks], Any], shapes: OpenShapes, blocks: Blocks, payload: Payload
    ) -> Any:
        """What `read` makes of vectors or of a result; `shapes` are those it has for outputs of open size.

        The sizes of outputs may depend on values, too. So nothing is refused for a shape that is known from
        other inputs of the same kind: `apply` is asked with these.

        A forward pass may take an hour, and none is run only to check a shape, with one exception: NumPy
        would stretch an axis of size 1 over an output of any size, and no code would notice.
        """
        try:
            found = read(blocks)
        except (InputError, ComponentError):
            asked = self._asked(blocks, payload, anew=True)
            if asked == blocks:
                raise
            return read(asked)
        if any(1 in shape for shape in shapes(blocks, found)):
            return read(self._asked(blocks, payload, anew=False))
        return found

    def _read_vectors(self, blocks: Blocks, payload: Payload, context: Context) -> dict[str, Any]:
        return self._fitted(
            lambda known: read_vectors(self.kind, known, payload, context),
            lambda known, vectors: _open_shapes_of_vectors(self.kind, known, vectors),
            blocks,
            payload,
        )

    def _read_result(
        self, blocks: Blocks, payload: Payload, result: Any, length: int | None = None
    ) -> Any:
        """A checked result; `length` is that of a batch that the function has taken as a whole."""
        batch = () if length is None else (length,)
        return self._fitted(
            lambda known: read_derivative(
                self.kind, known.with_batch(length) if batch else known, result
            ),
            lambda known, found: _open_shapes_of_result(self.kind, known, found, len(batch)),
            blocks,
            payload,
        )

    def _asked(self, blocks: Blocks, payload: Payload, *, anew: bool) -> Blocks:
        """The arrays with the sizes that `apply` gives to the outputs, if it may be asked."""
        if not self.shapes.asks_apply:
            return blocks
        context: Context = {"dims": {}}
        inputs = self.schemas.read_inputs(payload["inputs"], self.kind.endpoint, context)
        return self._blocks(inputs, payload, context, ask=True, anew=anew)

    def _batch(
        self, blocks: Blocks, arguments: dict[str, Any], payload: Payload, context: Context
    ) -> Any:
        """The products of a batch of vectors: in one call where the function can, else one by one."""
        kind = self.kind
        vectors = self._fitted(
            lambda known: read_vectors(kind, known.with_batch(None), payload, context),
            lambda known, given: _open_shapes_of_vectors(kind, known, given, 1),
            blocks,
            payload,
        )
        ((_, vector),) = vectors.items()
        length = batch_length(vector) if self.can_batch else None

        def product(*values: Any, **options: Any) -> Any:
            named = dict(zip(kind.argument_names, values, strict=True))
            result = call_author(self.function, kind.endpoint, **named, **options)
            return self._read_result(blocks, payload, result, length)

        inputs, input_paths, output_paths = arguments.values()
        return batched_product(
            product, inputs, input_paths, output_paths, vector, can_batch=self.can_batch
        )


def derivative_handler(
    kind: DerivativeKind, schemas: Schemas, function: Callable[..., Any], shapes: OutputShapes
) -> Derivative:
    """The handler of a derivative endpoint."""
    check_signature(function, kind.endpoint, kind.argument_names)
    can_batch = kind.takes_batches and takes_argument(function, BATCHED)
    return Derivative(kind, schemas, function, can_batch, shapes)


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

    def with_outputs(self, shape_of: ShapeOf) -> Blocks:
        """The same arrays, with sizes of outputs that the declarations leave open."""
        known = {path: shape_of(path) for path, spec in self.outputs.items() if _is_open(spec)}
        exact = {
            path: replace(self.outputs[path], shape=shape, dimension_names=())
            for path, shape in known.items()
            if shape is not None
        }
        return Blocks(self.inputs, {**self.outputs, **exact})

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
        spec, shape=np.shape(value), dtype=dtype_name(value), dimension_names=(), units=None
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
        problem = error.message().rstrip(".")
        raise _bad(f"{endpoint} returned a wrong array at {where}: {problem}") from error


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


Shapes = Mapping[str, ArraySpec]


class OutputShapes:
    """What is known of the outputs' shapes.

    Args:
        schemas: of the component.
        abstract_eval: the author's; `None` if there is none.
        apply: its results tell shapes where there is none; `None` for derivatives that check vectors
            themselves.
    """

    def __init__(
        self,
        schemas: Schemas,
        abstract_eval: Callable[[Any], Any] | None = None,
        apply: Callable[[Any], Any] | None = None,
    ) -> None:
        self._schemas = schemas
        self._abstract_eval = abstract_eval
        self._apply = apply
        self._answers: LRUCache[str, ShapeOf] = LRUCache(64)

    @cached_property
    def asks_apply(self) -> bool:
        """Whether shapes are those of earlier results, because the schema leaves some open."""
        outputs = self._schemas.differentiable["outputs"].values()
        return (
            self._abstract_eval is None and self._apply is not None and any(map(_is_open, outputs))
        )

    def named(self, outputs: Shapes, context: Context) -> Shapes:
        """The declarations with the sizes that the inputs give to names of dimensions."""
        table = context.get("dims") or {}
        return {path: _with_sizes(spec, table) for path, spec in outputs.items()}

    def exact(
        self,
        blocks: Blocks,
        inputs: BaseModel,
        *,
        apply: bool = True,
        ask: bool = False,
        anew: bool = False,
    ) -> Blocks:
        """The declarations with the sizes that are still open, if the author's code tells them.

        Args:
            blocks: the declarations.
            inputs: of the request.
            apply: whether `apply` may be asked.
            ask: whether to run `apply` for a kind of inputs that is not known.
            anew: whether to ask again for a kind of inputs that is known.
        """
        answer = self._ask_abstract if self._abstract_eval is not None else self._ask_apply
        may_ask = self._abstract_eval is not None or (apply and self.asks_apply)
        if not may_ask or not any(map(_is_open, blocks.outputs.values())):
            return blocks
        tree = to_abstract(to_plain(inputs))
        key = repr(tree)
        shapes = None if anew else self._answers.get(key)
        if shapes is None and self._abstract_eval is None and not ask:
            return blocks
        if shapes is None:
            shapes = answer(tree, inputs)
            self._answers.put(key, shapes)
        return blocks.with_outputs(shapes)

    def note(self, tree: Any, outputs: Any) -> None:
        """Remember the shapes of a result of `apply`; `tree` is its inputs, made abstract."""
        self._answers.put(repr(tree), _array_shapes(outputs).get)

    def _ask_abstract(self, tree: Any, _: BaseModel) -> ShapeOf:
        assert self._abstract_eval is not None
        context: Context = {"dims": {}}
        model = self._schemas.read_abstract_inputs(tree, ABSTRACT_EVAL.endpoint, context)
        result = call_author(self._abstract_eval, ABSTRACT_EVAL.endpoint, model)
        answer = self._schemas.read_abstract_outputs(result, ABSTRACT_EVAL.endpoint, context)
        return lambda path: tuple(get_at_path(answer, path).shape)

    def _ask_apply(self, _: Any, inputs: BaseModel) -> ShapeOf:
        assert self._apply is not None
        try:
            with unheard():
                result = call_author(self._apply, "apply", own_copy(inputs))
            return _array_shapes(self._schemas.read_outputs(result, "apply", {"dims": {}})).get
        except ComponentError:
            # A derivative may be there where `apply` fails; then the shapes stay open.
            return lambda path: None


def _array_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        path: tuple(leaf.shape)
        for path, leaf in flatten_with_paths(tree).items()
        if hasattr(leaf, "shape")
    }


def _is_open(spec: ArraySpec) -> bool:
    return spec.shape is None or None in spec.shape


def _open_shapes_of_vectors(
    kind: DerivativeKind, blocks: Blocks, vectors: Mapping[str, Mapping[str, Any]], skipped: int = 0
) -> Iterator[tuple[int, ...]]:
    """The shapes that vectors have where the size of an output is not known, without `skipped` first axes."""
    for vector in kind.vectors:
        for path, spec in blocks.over(vector.over).items():
            if _is_open(spec):
                yield np.shape(vectors[vector.name][path])[skipped:]


def _open_shapes_of_result(
    kind: DerivativeKind, blocks: Blocks, result: Any, skipped: int = 0
) -> Iterator[tuple[int, ...]]:
    """The same of a result: a product by output, or blocks whose first axes are those of an output."""
    outer, *inner = kind.result_over
    for path, spec in blocks.over(outer).items():
        if not _is_open(spec):
            continue
        if not inner:
            yield np.shape(result[path])[skipped:]
            continue
        for other, block in result[path].items():
            yield block.shape[: len(block.shape) - len(blocks.over(inner[0])[other].shape or ())]


def _with_sizes(spec: ArraySpec, table: Mapping[str, tuple[int, str]]) -> ArraySpec:
    if not spec.dimension_names or spec.shape is None:
        return spec
    sizes = tuple(
        table[name][0] if name is not None and name in table else size
        for size, name in zip(spec.shape, spec.dimension_names, strict=True)
    )
    return replace(spec, shape=sizes)


_TAGGED = TAGGED.endpoint


@dataclass(frozen=True)
class Tagged:
    """The handler of `tagged_intermediates`.

    Attributes:
        schemas: of the component.
        function: the author's, or the recipe of a framework.
        knows_shapes: whether the function takes `abstract`.
    """

    schemas: Schemas
    function: Callable[..., Any]
    knows_shapes: bool
    can_batch: ClassVar[bool] = False

    def __call__(self, payload: Payload, context: Context) -> Any:
        """`{name: {mode: value}}` as a plain tree."""
        check_fields(payload, TAGGED.required_names, _TAGGED, TAGGED.optional_names)
        read = self._abstract if payload.get("abstract") else self._concrete
        arguments = {"tag": _read_tag(payload), **read(payload, context)}
        return to_plain(_checked(call_author(self.function, _TAGGED, **arguments)))

    def _concrete(self, payload: Payload, context: Context) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "inputs": self.schemas.read_inputs(payload["inputs"], _TAGGED, context)
        }
        for vector in (TANGENT, COTANGENT):
            given = payload.get(vector.name)
            arguments[vector.name] = (
                None
                if given is None
                else read_free_vector(vector, self.schemas, arguments["inputs"], given, context)
            )
        return arguments

    def _abstract(self, payload: Payload, context: Context) -> dict[str, Any]:
        if not self.knows_shapes:
            raise CapabilityError(
                f"{_TAGGED} of this component does not tell shapes without computing; its author can let "
                "it take `abstract`.",
                code="no_abstract_intermediates",
            )
        inputs = self.schemas.read_abstract_inputs(payload["inputs"], _TAGGED, context)
        return {"inputs": inputs, TANGENT.name: None, COTANGENT.name: None, "abstract": True}


def tagged_handler(schemas: Schemas, function: Callable[..., Any]) -> Tagged:
    """The handler around a function."""
    check_signature(function, _TAGGED, ("inputs", "tag", TANGENT.name, COTANGENT.name))
    return Tagged(schemas, function, takes_argument(function, "abstract"))


def _read_tag(payload: Payload) -> str:
    tag = payload.get("tag", "intermediates")
    if not isinstance(tag, str):
        raise InputError(
            f"tag: expected the text that values are tagged with; found {describe_value(tag)}.",
            code="bad_tag",
            path="tag",
        )
    return tag


def _checked(result: Any) -> Any:
    if isinstance(result, Mapping) and all(isinstance(entry, Mapping) for entry in result.values()):
        return result
    raise ComponentError(
        f"{_TAGGED} returned {describe_value(result)}, expected "
        '{name: {"primal": value, "tangent" or "cotangent": value}}.',
        code="bad_output",
    )
