"""Words of messages: what a value is (shape and dtype in the short form `f64[3,4]`, never the data), the name
that was probably meant, an error in one line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from chainrule._errors import InputError
from chainrule._trees import is_arraylike, with_article

_ARRAYS = {
    "numpy": "a NumPy array",
    "jax": "a JAX array",
    "jaxlib": "a JAX array",
    "torch": "a torch tensor",
    "cupy": "a CuPy array",
}
_SHORT = {"bool": "bool", "bfloat16": "bf16"}
_SHORT_KINDS = {"float": "f", "int": "i", "uint": "u", "complex": "c"}


def describe_type(shape: tuple[Any, ...] | None, dtype: Any) -> str:
    """Shape and dtype in the short form of messages, like `f64[3,4]`.

    Open dimensions are written `?`, any rank `...`, any dtype `any`.
    """
    name = "any" if dtype is None else str(dtype)
    dims = "..." if shape is None else ",".join("?" if d is None else str(d) for d in shape)
    return f"{_short_dtype(name)}[{dims}]"


def _short_dtype(name: str) -> str:
    if name in _SHORT:
        return _SHORT[name]
    letters = name.rstrip("0123456789")
    return _SHORT_KINDS.get(letters, letters) + name[len(letters) :]


def describe_array(x: Any) -> str:
    """The shape and dtype of a value in the short form `f64[3,4]`; the type's name if it has none."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None:
        return type(x).__name__
    return describe_type(tuple(shape), getattr(dtype, "name", dtype))


def describe_value(x: Any) -> str:
    """What a value is, for people: `a JAX array f32[3]`, `a list`, `an int`, `nothing`."""
    if x is None:
        return "nothing"
    kind = type(x)
    noun = _ARRAYS.get(kind.__module__.partition(".")[0])
    if noun is None or not is_arraylike(x):
        return with_article(kind.__name__)
    return f"{noun} {describe_type(tuple(x.shape), str(x.dtype).removeprefix('torch.'))}"


def closest(name: Any, known: Iterable[str]) -> str | None:
    """The known name that was probably meant by one that does not exist, if one is close."""
    return next(iter(get_close_matches(str(name), list(known), n=1)), None)


P = ParamSpec("P")
R = TypeVar("R")


def names_its_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse a keyword that a function does not have, with the one that was probably meant."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise InputError(
                    f"{function.__name__} has no argument {name!r}; it has {', '.join(known)}."
                    f"{did_you_mean(name, known)}",
                    code="bad_option",
                )
        return function(*args, **kwargs)

    return checked


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """A sentence, after a space, with the name that was probably meant; nothing where none is close."""
    close = closest(name, known)
    return f" Did you mean {close!r}?" if close else ""


_COMPONENTS = (".py", ".yaml", ".yml", ".fmu", ".onnx")  # suffixes


def did_you_mean_file(path: Path, folder_files: Collection[str]) -> str:
    """A sentence, after a space, with the component beside a missing one that was probably meant, if any.

    Args:
        path: where there is nothing.
        folder_files: the files that make a folder a component.
    """
    if not path.parent.is_dir():
        return ""
    known: dict[str, Path] = {}  # with and without the suffix → the file or folder
    for file in path.parent.iterdir():
        if file.suffix in _COMPONENTS or any((file / name).is_file() for name in folder_files):
            known |= {file.stem: file, file.name: file}
    close = closest(path.name, known)
    return f" Did you mean {str(known[close])!r}?" if close else ""


def describe_error(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}".rstrip(": ")
