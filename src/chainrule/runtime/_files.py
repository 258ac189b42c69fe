"""Fields whose data is in files, and files that a component needs.

    InputPath      a file or folder the caller names, inside the component's `input_path`. In memory an
                   absolute path.
    OutputPath     a file or folder the author made, inside `output_path`. In memory an absolute path,
                   written relative to `output_path`.
    require_file   a file that the component needs inside its `input_path`
    LazySequence   a field whose items are read and validated one at a time. The caller sends a list, or
                   `"@<pattern>"`: the files in `input_path` that match, in sorted order, each with the JSON
                   of one item. An item is in memory only while it is used.
    BinrefWriter, BinrefArray   arrays that a component leaves in files of its run's folder

Paths are refused when they lead out of their folder, links followed, and when nothing is there. Validators
that are added with `Annotated` see the absolute path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, get_args

import orjson
from pydantic import (
    AfterValidator,
    GetCoreSchemaHandler,
    PlainSerializer,
    TypeAdapter,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from chainrule import _codec
from chainrule._codec import Grants
from chainrule._errors import DecodeError, InputError, NotGrantedError
from chainrule.runtime._runs import current_run, get_config
from chainrule.runtime._schema import dimension_check

# What existing components import from `tesseract_core.runtime.file_interactions`.
__all__ = ["InputPath", "OutputPath", "require_file"]


def _inside(folder: Path | None, path: Path) -> str:
    """The path relative to its folder; `Grants` says whether it stays there."""
    if folder is not None and path.is_absolute():
        try:
            return str(Path(os.path.realpath(path)).relative_to(os.path.realpath(folder)))
        except ValueError:
            raise NotGrantedError(
                "Expected a path inside the granted folder; found an absolute path elsewhere.",
                code="path_not_granted",
            ) from None
    return str(path)


def _must_exist(path: Path, name: str) -> Path:
    if not path.exists():
        raise InputError(
            f"Nothing exists at the path that was given, below {name}.", code="file_missing"
        )
    return path


def _context_grants(info: ValidationInfo) -> tuple[Grants, bool]:
    context = info.context or {}
    return context.get("grants") or get_config().grants, bool(context.get("skip_path_checks"))


def _input_path(path: Path, info: ValidationInfo) -> Path:
    grants, is_unchecked = _context_grants(info)
    if is_unchecked and grants.input_dir is None:
        return path
    found = grants.input_path(_inside(grants.input_dir, path))
    return found if is_unchecked else _must_exist(found, "input_path")


def _output_path(path: Path, info: ValidationInfo) -> Path:
    grants, is_unchecked = _context_grants(info)
    if is_unchecked and grants.output_dir is None:
        return path
    found = grants.output_path(_inside(grants.output_dir, path))
    return found if is_unchecked else _must_exist(found, "output_path")


def _relative_to_output(path: Path) -> str:
    folder = get_config().output_path
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


InputPath = Annotated[Path, AfterValidator(_input_path), PlainSerializer(str, return_type=str)]
"""An existing file or folder inside the component's `input_path`."""

OutputPath = Annotated[
    Path, AfterValidator(_output_path), PlainSerializer(_relative_to_output, return_type=str)
]
"""An existing file or folder inside the component's `output_path`."""


def require_file(file_path: str | Path) -> Path:
    """The absolute path of a regular file that a component needs inside its `input_path`.

    Args:
        file_path: relative to `input_path`.

    Returns:
        The path; as it was given, unchecked, when the component's `require_files` is off.

    Raises:
        NotGrantedError: the path leads out of the folder.
        InputError: there is no such file (`file_missing`), or it is not a regular file
            (`not_a_file`).
    """
    config = get_config()
    if not config.require_files:
        return Path(file_path)
    found = config.grants.input_path(str(file_path))
    if not found.exists():
        raise InputError(
            f"The component needs the file {str(file_path)!r} inside its input_path; there is none. "
            "Put it there, or point input_path at its folder.",
            code="file_missing",
        )
    if not found.is_file():
        raise InputError(
            f"The component needs a regular file {str(file_path)!r} inside its input_path; found "
            "something else there.",
            code="not_a_file",
        )
    return found


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
        # Items are validated later than the tree they belong to, so they check named dimensions themselves.
        annotated: Any = Annotated[item, dimension_check(item)]
        adapter: TypeAdapter[Any] = TypeAdapter(annotated)

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
    if Path(pattern).is_relative_to(root):
        pattern = str(Path(pattern).relative_to(root))
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


_MAX_FILE_BYTES = 100 * (1 << 20)


class BinrefWriter:
    """Writes arrays to files below the component's `output_path` and returns references to them.

    A reference can be returned for any array field: with the format `json+binref` the reference is sent.
    Every array becomes a file of its own, complete under its name when `write` returns; so a `with` block,
    which existing components may put around it, has nothing to finish.

    Args:
        max_file_size: has no effect; existing components pass it.
        compression: `"lz4"`, `"zstd"` or `None`.
    """

    def __init__(
        self, max_file_size: int = _MAX_FILE_BYTES, compression: str | None = None
    ) -> None:
        self._compression = compression

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Nothing is open."""

    def write(self, arr: Any) -> _codec.BinrefArray:
        """Write one array.

        Raises:
            StorageError: the folder is full, read-only or gone.
        """
        run = current_run.get()
        root = get_config().output_path
        folder = "" if run is None else str(run.folder.relative_to(root))
        with _codec.BinrefWriter(
            root, run="" if folder == "." else folder, compression=self._compression
        ) as writer:
            return writer.write(arr)


class BinrefArray(_codec.BinrefArray):
    """A reference to an array in a file below the component's `output_path`."""

    @classmethod
    def write(cls, arr: Any, compression: str | None = None) -> _codec.BinrefArray:
        """Write an array to a file of its own and refer to it."""
        return BinrefWriter(compression=compression).write(arr)

    @classmethod
    def from_file(  # type: ignore[override]
        cls,
        path: str,
        shape: tuple[int, ...],
        dtype: str,
        offset: int = 0,
        compression: str | None = None,
        compressed_size: int | None = None,
    ) -> _codec.BinrefArray:
        """Refer to bytes that are already in a file; the path is relative to `output_path`.

        Raises:
            NotGrantedError: the path leads out of the folder.
            DecodeError: the file is missing or too short.
        """
        return _codec.BinrefArray.from_file(
            path,
            shape,
            dtype,
            folder=get_config().output_path,
            offset=offset,
            compression=compression,
            compressed_size=compressed_size,
        )
