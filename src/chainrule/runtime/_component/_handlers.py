"""Handlers: from the payload of a request to the author's function, and from its result to a plain tree.

There is one handler for each endpoint. It validates once on the way in and once on the way out.

A derivative request names paths that have to exist and be differentiable, and vectors that have to fit them
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
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from chainrule._codec import SparseArray
from chainrule._describe import describe_value, did_you_mean
from chainrule._device import own_copy
from chainrule._endpoints import (
    ABSTRACT_EVAL,
    BATCHED,
    COTANGENT,
    TAGGED,
    TANGENT,
    DerivativeKind,
    EndpointKind,
    Side,
    Vector,
    to_abstract,
)
from chainrule._errors import (
    CapabilityError,
    ChainruleError,
    ComponentError,
    DefinitionError,
    InputError,
    PathError,
)
from chainrule._lru_cache import LRUCache
from chainrule._paths import matches_pattern, path_to_pattern
from chainrule._progress import unheard
from chainrule._trees import dtype_name, flatten_with_paths, get_at_path, is_arraylike
from chainrule.runtime._component._definition import check_signature, takes_argument
from chainrule.runtime._component._failures import bad_output, failure_of, is_of_another_component
from chainrule.runtime._component._isolation import author_line, defined_at
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._schema import ArraySpec, build_validator
from chainrule.runtime._schema._plain import to_plain

Payload = Mapping[str, Any]
Handler = Callable[[Payload, Context], Any]
Specs = Mapping[str, ArraySpec]
ShapeOf = Callable[[str], tuple[int, ...] | None]
"""The shape of the output at a path, or `None` where it is not known."""


def evaluation_handler(
    name: str,
    schemas: Schemas,
    function: Callable[[Any], Any],
    shapes: OutputShapes | None = None,
    *,
    author: Callable[..., Any] | None = None,
) -> Handler:
    """The handler of `apply` or `abstract_eval`.

    Args:
        name: of the endpoint.
        schemas: of the component.
        function: takes the model of the inputs.
        shapes: learns from every evaluation.
        author: the function that the author wrote, where `function` only calls it.
    """
    check_signature(function, name, 1)
    read_inputs, read_outputs = (
        (schemas.read_inputs, schemas.read_outputs)
        if name == "apply"
        else (schemas.read_abstract_inputs, schemas.read_abstract_outputs)
    )

    def evaluate(payload: Payload, context: Context) -> Any:
        check_fields(payload, ("inputs",), name)
        inputs = read_inputs(payload["inputs"], name, context)
        # Made before the call: the author's code may change its inputs.
        key = None if shapes is None else shapes.key(inputs)
        result = call_author(function, name, inputs, author=author)
        try:
            outputs = to_plain(read_outputs(result, name, context))
        except ComponentError as error:
            error.message = f"{error.message}{defined_at(author or function)}"
            raise
        if shapes is not None and key is not None:
            shapes.note(key, outputs)
        return outputs

    return evaluate


def call_author(
    function: Callable[..., Any],
    endpoint: str,
    /,
    *args: Any,
    author: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Call the author's function; `author` is what the author wrote, where `function` only calls it.

    Errors of Chainrule pass: an author raises `InputError` to say that the caller is at fault. Everything
    else, an exit included, becomes a `ComponentError` with the author's exception as its cause; so does what
    another component that the author called refused, for that is not the caller's mistake. A result of
    `None` is refused with a hint at a missing `return`.
    """
    try:
        result = function(*args, **kwargs)
    except ChainruleError as error:
        if isinstance(error, DefinitionError) or error.code == "bad_output":
            where = author_line(error) or defined_at(author or function)
            error.message = f"{error.message.rstrip('.')}{where}"
        if is_of_another_component(error):
            called = error.details.get("refused_by", "another component")
            raise ComponentError(
                f"{endpoint} called {called}, which refused: {error.message}",
                code="inner_call_refused",
            ) from error
        raise
    except ValidationError as error:
        raise bad_output(error, None, endpoint=endpoint, where=author_line(error)) from error
    except SystemExit as error:
        raise ComponentError(
            f"{endpoint} tried to exit the process with status {error.code!r}. A component returns "
            "or raises; it does not exit.",
            code="component_exited",
        ) from error
    except Exception as error:
        raise failure_of(endpoint, error) from error
    if result is None:
        raise ComponentError(
            f"{endpoint} returned None. Does its function end with `return`?{defined_at(author or function)}",
            code="bad_output",
        )
    return result


def check_fields(
    payload: Payload, expected: tuple[str, ...], endpoint: str, optional: tuple[str, ...] = ()
) -> None:
    """Refuse a payload that has other fields than its endpoint.

    Raises:
        InputError: the first field that is missing or unknown is named.
    """
    if type(payload) is dict and payload.keys() == _set_of(expected):
        return
    if not isinstance(payload, Mapping):
        raise InputError(
            f"{endpoint}: expected an object with {', '.join(expected)}; "
            f"found {describe_value(payload)}.",
            code="invalid_input",
            details={"problems": [_problem("dict_type", [], "Expected an object")], "count": 1},
        )
    problems = [
        *(_problem("missing", [n], "Field required") for n in expected if n not in payload),
        *(_problem("extra_forbidden", [str(n)], "Unknown field") for n in payload
          if n not in (*expected, *optional)),
    ]  # fmt: skip
    if not problems:
        return
    first = problems[0]
    raise InputError(
        f"{endpoint}: {first['msg'].lower()}: {first['path']!r}. A request has the fields "
        f"{', '.join(expected)}.",
        code="missing_field" if first["type"] == "missing" else "unknown_field",
        path=first["path"],
        details={"problems": problems[:20], "count": len(problems)},
    )


@cache
def _set_of(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


def _problem(kind: str, loc: list[str], message: str) -> dict[str, Any]:
    return {"type": kind, "loc": loc, "path": ".".join(loc), "msg": message, "ctx": {}}


def can_batch(kind: EndpointKind, function: Callable[..., Any]) -> bool:
    """Whether a function answers a batch of vectors in one call, rather than one by one."""
    return BATCHED in kind.options and takes_argument(function, BATCHED)


def derivative_handler(
    kind: DerivativeKind, schemas: Schemas, function: Callable[..., Any], shapes: OutputShapes
) -> Handler:
    """The handler of any of the derivative endpoints; `shapes` says what is known of the outputs."""
    check_signature(function, kind.endpoint, kind.argument_names)
    facts = _Derivative(kind, schemas, function, can_batch(kind, function), shapes)
    return lambda payload, context: _Request(facts, payload, context).answer()


def read_derivative_request(
    kind: DerivativeKind,
    schemas: Schemas,
    function: Callable[..., Any],
    shapes: OutputShapes,
    payload: Payload,
    context: Context,
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The arguments for the function of an endpoint, validated, and what validates its result.

    Not for batches of vectors, and not for a derivative that comes with its value.
    """
    facts = _Derivative(kind, schemas, function, can_batch(kind, function), shapes)
    return _Request(facts, payload, context).read()


@dataclass(frozen=True)
class _Derivative:
    kind: DerivativeKind
    schemas: Schemas
    function: Callable[..., Any]
    can_batch: bool
    shapes: OutputShapes


class _Request:
    """One request of a derivative endpoint. `_blocks` become exact as shapes of outputs become known."""

    def __init__(self, facts: _Derivative, payload: Payload, context: Context) -> None:
        kind, shapes = facts.kind, facts.shapes
        check_fields(payload, kind.required_names, kind.endpoint, kind.optional_names)
        self._facts, self._kind = facts, kind
        self._payload, self._context = payload, context
        self._inputs = facts.schemas.read_inputs(payload["inputs"], kind.endpoint, context)
        paths = read_paths(kind, facts.schemas, self._inputs, payload)
        self._blocks = shapes.known(paths, self._inputs, context)
        self._arguments = (self._inputs, set(paths.inputs), set(paths.outputs))
        may_ask = shapes.asks_apply and not kind.with_value and self._blocks.open_outputs
        # Made now: the author's code may change its inputs.
        self._key = shapes.key(self._inputs) if may_ask else None

    def read(self) -> tuple[dict[str, Any], Callable[[Any], Any]]:
        """The validated arguments by name, and what validates a result."""
        values = (*self._arguments, *self._read_vectors().values())
        return dict(zip(self._kind.argument_names, values, strict=True)), self._read_result

    def answer(self) -> Any:
        """The derivative as a plain tree keyed by paths."""
        kind, payload, context = self._kind, self._payload, self._context
        if read_batched(kind, payload):
            return self._answer_batch()
        vectors = self._read_vectors()
        result = self._call(*self._arguments, *vectors.values())
        if not kind.with_value:
            return self._read_result(result)
        value, gradient = read_value(kind, self._facts.schemas, result, context)
        # The outputs are here: the cotangent that was given has to have their shapes.
        read_vectors(kind, self._blocks.with_outputs(_array_shapes(value).get), payload, context)
        return {"outputs": value, "gradient": read_derivative(kind, self._blocks, gradient)}

    def _answer_batch(self) -> Any:
        """The products of a batch of vectors: in one call where the function can, else one by one."""
        # Imported here: a component without derivatives starts without their code.
        from chainrule.runtime._derivatives._derive import batch_length, batched_product

        (vector,) = self._read_vectors(batched=True).values()
        in_one_call = self._facts.can_batch
        length = batch_length(vector) if in_one_call else None

        def product(*values: Any, **options: Any) -> Any:
            return self._read_result(self._call(*values, **options), length)

        return batched_product(product, *self._arguments, vector, can_batch=in_one_call)

    def _call(self, *values: Any, **options: Any) -> Any:
        kind = self._kind
        named = dict(zip(kind.argument_names, values, strict=True))
        try:
            return call_author(self._facts.function, kind.endpoint, **named, **options)
        except InputError as error:
            given = [
                spec for each in kind.vectors for spec in self._blocks.over(each.over).values()
            ]
            if error.code != "vector_shape_mismatch" or any(map(_is_open, given)):
                raise
            # The vectors have the shapes of inputs and outputs: another derivative, from which this one
            # follows, has not.
            raise _bad(
                f"{kind.endpoint} follows from a derivative of another shape than the inputs and "
                f"outputs: {error.message.removesuffix('.')}"
            ) from error

    def _read_vectors(self, *, batched: bool = False) -> dict[str, dict[str, Any]]:
        def read(blocks: Blocks) -> dict[str, dict[str, Any]]:
            widened = blocks.with_batch(None) if batched else blocks
            return read_vectors(self._kind, widened, self._payload, self._context)

        def shapes(vectors: dict[str, dict[str, Any]]) -> Iterator[tuple[str, tuple[int, ...]]]:
            for vector in self._kind.vectors:
                if vector.over == "outputs":
                    for path in self._blocks.open_outputs:
                        yield path, np.shape(vectors[vector.name][path])[int(batched) :]

        return self._fitted(read, shapes)

    def _read_result(self, result: Any, length: int | None = None) -> Any:
        """A checked result; `length` is that of a batch that the function has taken as a whole."""

        def read(blocks: Blocks) -> Any:
            widened = blocks if length is None else blocks.with_batch(length)
            return read_derivative(self._kind, widened, result)

        def shapes(found: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
            """Of products keyed by outputs, or of blocks whose first axes are those of an output."""
            outer, *inner = self._kind.result_over
            for path in self._blocks.open_outputs if outer == "outputs" else ():
                if not inner:
                    yield path, np.shape(found[path])[int(length is not None) :]
                    continue
                for other, block in found[path].items():
                    rank = len(block.shape) - len(self._blocks.inputs[other].shape or ())
                    yield path, block.shape[:rank]

        return self._fitted(read, shapes)

    def _fitted(
        self,
        read: Callable[[Blocks], Any],
        shapes: Callable[[Any], Iterable[tuple[str, tuple[int, ...]]]],
    ) -> Any:
        """What `read` makes of vectors or of a result; `shapes` are those it has for outputs of open size.

        The sizes of outputs may depend on values, too. So nothing is refused for a shape that is known from
        other inputs of the same kind: `apply` is asked with these.

        A forward pass may take an hour, and none is run only to check a shape, with one exception: NumPy
        would stretch an axis of size 1 over an output of any size, and no code would notice.
        """
        found = read(self._blocks)
        given = list(shapes(found)) if self._key is not None else []
        known = None if self._key is None else self._facts.shapes.remembered(self._key)
        if not given or (known is None and not any(1 in shape for _, shape in given)):
            return found
        if known is None or not _agree(given, known):
            known = self._ask_apply()
        self._blocks = self._blocks.with_outputs(known)
        return found if _agree(given, known) else read(self._blocks)

    def _ask_apply(self) -> ShapeOf:
        """The shapes that `apply` gives to the outputs, at inputs that the author has not seen yet."""
        assert self._key is not None
        endpoint = self._kind.endpoint
        inputs = self._facts.schemas.read_inputs(self._payload["inputs"], endpoint, {"dims": {}})
        return self._facts.shapes.computed(self._key, inputs)


def _agree(given: Iterable[tuple[str, tuple[int, ...]]], known: ShapeOf) -> bool:
    return all(known(path) in (None, shape) for path, shape in given)


@dataclass(frozen=True)
class Blocks:
    """The selected paths of one derivative request, each with what is known of its array.

    Inputs are there, so their shapes are exact; of outputs the declaration is known, and the sizes of
    named dimensions that the inputs have, too.
    """

    inputs: Specs
    outputs: Specs

    @property
    def open_outputs(self) -> list[str]:
        """The outputs of which some size is not known."""
        return [path for path, spec in self.outputs.items() if _is_open(spec)]

    def over(self, side: Side) -> Specs:
        """The paths of one side."""
        return self.inputs if side == "inputs" else self.outputs

    def with_outputs(self, shape_of: ShapeOf) -> Blocks:
        """The same arrays, with sizes of outputs that the declarations leave open."""
        exact = {
            path: replace(self.outputs[path], shape=shape, dimension_names=())
            for path in self.open_outputs
            if (shape := shape_of(path)) is not None
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
    kind: DerivativeKind, schemas: Schemas, inputs: BaseModel, payload: Payload
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


def _present_paths(declared: Specs, inputs: BaseModel) -> list[str]:
    """All differentiable arrays that these inputs have."""
    return [
        path
        for path, leaf in flatten_with_paths(inputs).items()
        if is_arraylike(leaf) and any(matches_pattern(path, pattern) for pattern in declared)
    ]


def _plain_paths(declared: Specs, argument: str) -> list[str]:
    """All differentiable outputs, if the schema alone says which there are."""
    for pattern in declared:
        if "[]" in pattern or "{}" in pattern:
            example = pattern.replace("[]", "[0]").replace("{}", "{key}")
            raise InputError(
                f"{argument}: name the outputs to differentiate, such as {example!r}; how many there are at "
                f"{pattern!r} is not known before the component runs.",
                code="bad_paths",
                path=argument,
            )
    return list(declared)


def _declared_paths(value: Any, argument: str, declared: Specs) -> dict[str, ArraySpec]:
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


def _declaration(path: str, argument: str, declared: Specs) -> ArraySpec:
    spec = declared.get(path) or declared.get(path_to_pattern(path))
    if spec is None:
        # Positions of fixed tuples keep their number in a pattern: `pairs.[].[0]`.
        spec = next((s for pattern, s in declared.items() if matches_pattern(path, pattern)), None)
    if spec is None:
        braced = _with_braces(path, declared)
        hint = (
            f" Keys of a mapping stand in braces: {braced}."
            if braced
            else did_you_mean(path, declared)
        )
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


def read_batched(kind: DerivativeKind, payload: Payload) -> bool:
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
    kind: DerivativeKind, blocks: Blocks, payload: Payload, context: Context
) -> dict[str, dict[str, Any]]:
    """The tangents and cotangents of a request, by the names of their arguments.

    Raises:
        InputError: other keys than the selected paths (`vector_keys_mismatch`), or an array that does
            not fit its path.
    """
    return {
        vector.name: _read_vector(vector, blocks.over(vector.over), payload[vector.name], context)
        for vector in kind.vectors
    }


def _read_vector(vector: Vector, specs: Specs, value: Any, context: Context) -> dict[str, Any]:
    """One array per selected path, in the paths' shapes and dtypes."""
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
        problem = _problem(error.type, [vector, path], error.message())
        problem |= {"path": path, "ctx": error.context or {}}
        raise InputError(
            f"{vector} at {path!r}: {error.message()}",
            code=(error.context or {}).get("code", error.type),
            path=path,
            details={"problems": [problem], "count": 1},
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
    sides: Sequence[Specs],
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


class OutputShapes:
    """What is known of the outputs' shapes.

    Args:
        schemas: of the component.
        abstract_eval: the author's; `None` if there is none.
        apply: its results tell shapes where there is none; `None` for derivatives that check vectors
            themselves.

    Attributes:
        asks_apply: whether shapes are those of earlier results, because the schema leaves some open.
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
        has_open = any(map(_is_open, schemas.differentiable["outputs"].values()))
        self.asks_apply = abstract_eval is None and apply is not None and has_open

    @staticmethod
    def key(inputs: BaseModel) -> str:
        """The kind of some inputs: their shapes and dtypes, and all other values."""
        return repr(to_abstract(to_plain(inputs)))

    def known(self, blocks: Blocks, inputs: BaseModel, context: Context) -> Blocks:
        """The declarations with the sizes that names of dimensions have, or that `abstract_eval` tells."""
        table = context.get("dims") or {}
        named = {path: _with_sizes(spec, table) for path, spec in blocks.outputs.items()}
        blocks = Blocks(blocks.inputs, named)
        if self._abstract_eval is None or not blocks.open_outputs:
            return blocks
        key = self.key(inputs)
        shape_of = self._answers.get(key)
        if shape_of is None:
            shape_of = self._ask_abstract(self._abstract_eval, inputs)
            self._answers.put(key, shape_of)
        return blocks.with_outputs(shape_of)

    def _ask_abstract(self, abstract_eval: Callable[[Any], Any], inputs: BaseModel) -> ShapeOf:
        context: Context = {"dims": {}}
        tree = to_abstract(to_plain(inputs))
        model = self._schemas.read_abstract_inputs(tree, ABSTRACT_EVAL.endpoint, context)
        result = call_author(abstract_eval, ABSTRACT_EVAL.endpoint, model)
        answer = self._schemas.read_abstract_outputs(result, ABSTRACT_EVAL.endpoint, context)
        return lambda path: tuple(get_at_path(answer, path).shape)

    def remembered(self, key: str) -> ShapeOf | None:
        """The shapes of an earlier result for this kind of inputs."""
        return self._answers.get(key)

    def note(self, key: str, outputs: Any) -> None:
        """Remember the shapes of a result of `apply`."""
        self._answers.put(key, _array_shapes(outputs).get)

    def computed(self, key: str, inputs: BaseModel) -> ShapeOf:
        """The shapes of the outputs, from a forward pass."""
        assert self._apply is not None
        try:
            with unheard():
                result = call_author(self._apply, "apply", own_copy(inputs))
            shape_of = _array_shapes(self._schemas.read_outputs(result, "apply", {"dims": {}})).get
        except ComponentError:
            # A derivative may be there where `apply` fails; then the shapes stay open.
            shape_of = dict[str, tuple[int, ...]]().get
        self._answers.put(key, shape_of)
        return shape_of


def _array_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        path: tuple(leaf.shape)
        for path, leaf in flatten_with_paths(tree).items()
        if hasattr(leaf, "shape")
    }


def _is_open(spec: ArraySpec) -> bool:
    return spec.shape is None or None in spec.shape


def _with_sizes(spec: ArraySpec, table: Mapping[str, tuple[int, str]]) -> ArraySpec:
    if not spec.dimension_names or spec.shape is None:
        return spec
    sizes = tuple(
        table[name][0] if name is not None and name in table else size
        for size, name in zip(spec.shape, spec.dimension_names, strict=True)
    )
    return replace(spec, shape=sizes)


_TAGGED = TAGGED.endpoint


def tagged_handler(schemas: Schemas, function: Callable[..., Any]) -> Handler:
    """The handler of `tagged_intermediates`, which gives `{name: {mode: value}}`."""
    check_signature(function, _TAGGED, ("inputs", "tag", TANGENT.name, COTANGENT.name))
    knows_shapes = takes_argument(function, "abstract")

    def answer(payload: Payload, context: Context) -> Any:
        check_fields(payload, TAGGED.required_names, _TAGGED, TAGGED.optional_names)
        if not payload.get("abstract"):
            arguments = _concrete_arguments(schemas, payload, context)
        elif knows_shapes:
            inputs = schemas.read_abstract_inputs(payload["inputs"], _TAGGED, context)
            arguments = {
                "inputs": inputs,
                TANGENT.name: None,
                COTANGENT.name: None,
                "abstract": True,
            }
        else:
            raise CapabilityError(
                f"{_TAGGED} of this component does not tell shapes without computing; its author can let "
                "it take `abstract`.",
                code="no_abstract_intermediates",
            )
        result = call_author(function, _TAGGED, tag=_read_tag(payload), **arguments)
        return to_plain(_checked(result))

    return answer


def _concrete_arguments(schemas: Schemas, payload: Payload, context: Context) -> dict[str, Any]:
    inputs = schemas.read_inputs(payload["inputs"], _TAGGED, context)
    arguments: dict[str, Any] = {"inputs": inputs, TANGENT.name: None, COTANGENT.name: None}
    for vector in (TANGENT, COTANGENT):
        value = payload.get(vector.name)
        if value is not None:
            # Its keys are themselves the selection of paths.
            paths = list(value) if isinstance(value, Mapping) else value
            specs = _declared_paths(paths, vector.name, schemas.differentiable[vector.over])
            if vector.over == "inputs":
                specs = {p: _exact(inputs, p, spec, vector.name) for p, spec in specs.items()}
            arguments[vector.name] = _read_vector(vector, specs, value, context)
    return arguments


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
