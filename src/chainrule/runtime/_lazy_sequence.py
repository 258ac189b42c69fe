"""`LazySequence[T]`: a field whose items are read and validated one at a time.

The caller sends a list, or `"@<pattern>"`: the files in the component's `input_path` that match, in sorted
order, each with the JSON of one item. An item exists only while somebody looks at it, so a component can
walk over more data than fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

import orjson
from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from chainrule._codec import Grants
from chainrule._errors import DecodeError, InputError
from chainrule.runtime._runs import get_config

T = TypeVar("T")


class LazySequence(Generic[T]):
    """A sequence that fetches its items when they are asked for.

    Args:
        keys: one key per item.
        getter: the item of a key.

    Example:
        >>> squares = LazySequence([1, 2, 3], lambda n: n * n)
        >>> squares[2], len(squares)
        (9, 3)
    """

    def __init__(self, keys: Sequence[Any], getter: Callable[[Any], T]) -> None:
        self._keys = keys
        self._getter = getter

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> T:
        if not isinstance(index, int):
            raise TypeError(f"LazySequence takes one integer index, not {type(index).__name__}")
        return self._getter(self._keys[index])

    def __iter__(self) -> Iterator[T]:
        return (self._getter(key) for key in self._keys)

    def __repr__(self) -> str:
        return f"LazySequence({len(self)} items)"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        (item,) = get_args(source) or (Any,)
        adapter: TypeAdapter[Any] = TypeAdapter(item)

        def validate(value: Any, info: core_schema.ValidationInfo) -> LazySequence[Any]:
            return _from_value(value, adapter, dict(info.context or {}))

        def dump(value: LazySequence[Any], info: core_schema.SerializationInfo) -> list[Any]:
            mode: Literal["json", "python"] = "json" if info.mode == "json" else "python"
            return [adapter.dump_python(i, mode=mode, context=info.context) for i in value]

        return core_schema.with_info_plain_validator_function(
            validate,
            json_schema_input_schema=core_schema.union_schema(
                [
                    core_schema.list_schema(handler.generate_schema(item)),
                    core_schema.str_schema(pattern="^@"),
                ]
            ),
            serialization=core_schema.plain_serializer_function_ser_schema(dump, info_arg=True),
        )


def _from_value(
    value: Any, adapter: TypeAdapter[Any], context: dict[str, Any]
) -> LazySequence[Any]:
    if isinstance(value, LazySequence):
        return value
    if isinstance(value, str):
        return _from_pattern(value, adapter, context)
    if not isinstance(value, Sequence):
        raise ValueError("expected a sequence, or '@' and a pattern of file names")

    def get(index: int) -> Any:
        return adapter.validate_python(value[index], context=context)

    return LazySequence(range(len(value)), get)


def _from_pattern(
    value: str, adapter: TypeAdapter[Any], context: dict[str, Any]
) -> LazySequence[Any]:
    if not value.startswith("@"):
        raise ValueError("expected '@' before a pattern of file names")
    grants: Grants = context.get("grants") or get_config().grants
    pattern = value[1:]
    root = grants.input_path(".")
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ValueError("expected a pattern below input_path, without '..'")
    names = sorted(str(path.relative_to(root)) for path in root.glob(pattern) if path.is_file())
    if not names:
        raise InputError("No file in input_path matches the pattern.", code="file_missing")

    def get(name: str) -> Any:
        file = grants.input_file(name)
        beside = Grants(file.parent, grants.output_dir, grants.allowed_urls)
        return adapter.validate_python(_read_json(file), context={**context, "grants": beside})

    return LazySequence(names, get)


def _read_json(file: Path) -> Any:
    try:
        return orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DecodeError(
            f"The item file {file.name} is not JSON: {error}.", code="not_json"
        ) from error
