"""Exceptions that leave a compiled program with their own type.

XLA carries an error as a code and a text. JAX raises it from C++ as a `JaxRuntimeError`, possibly later and
elsewhere (dispatch is asynchronous), and no Python code runs in between but one: an exception is made by its
class, and Python believes the object that `__new__` returns. `restore_errors` looks there whether the text
stands for an exception that somebody has kept.

A small program that JAX has run before is run at once, on the caller's thread, and its error is raised as a
plain `ValueError`, whose class nobody can change. `restore_in_caller` replaces it in the frame that made the
call, as a debugger could.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any, cast

from jax.errors import JaxRuntimeError

__all__ = ["restore_errors", "restore_in_caller"]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that was not made by the interpreter itself

_finders: list[Callable[[str], BaseException | None]] = []


def restore_errors(find: Callable[[str], BaseException | None]) -> None:
    """Raise JAX's runtime errors as what they stand for.

    Args:
        find: the exception behind the text of an error, or `None`. What is raised then is an instance of
            its class and of `JaxRuntimeError`, with its arguments, attributes and notes; it is the cause.
    """
    _finders.append(find)
    JaxRuntimeError.__new__ = staticmethod(_new)


def _new(cls: type[BaseException], *args: Any) -> BaseException:
    restored = _restored(str(args[0])) if cls is JaxRuntimeError and args else None
    return RuntimeError.__new__(cls, *args) if restored is None else restored


def restore_in_caller(frame: FrameType | None) -> None:
    """See that a failure which is about to be reported to XLA has its own type for the code that called XLA.

    Args:
        frame: the Python code that XLA was called from on this thread, if any.
    """
    # Without a caller this is XLA's own thread, and the error waits in the results. A debugger or a coverage
    # tool that is at work would be switched off by an exception: its user gets JAX's text.
    if frame is None or sys.gettrace() is not None:
        return

    def trace(frame: FrameType, event: str, what: Any) -> None:
        sys.settrace(None)
        frame.f_trace = None
        restored = _restored(str(what[1])) if event == "exception" else None
        if restored is not None:
            raise restored.with_traceback(what[2])

    sys.settrace(lambda *_: None)
    frame.f_trace = trace


def _restored(text: str) -> BaseException | None:
    original = next((error for find in _finders if (error := find(text)) is not None), None)
    if original is None:
        return None
    kind = type(original)
    try:
        restored = _made(kind, text, original.args)
    except TypeError:  # a class that cannot be derived from, or not together with a RuntimeError
        restored = _made(JaxRuntimeError, text, (f"{kind.__name__}: {original}",))
    vars(restored).update(vars(original))
    restored.__notes__ = list(getattr(original, "__notes__", ()))
    restored.__cause__ = original
    return restored


def _made(kind: Any, text: str, args: tuple[Any, ...]) -> BaseException:
    # As Python's own part of the class does it: an author's `__init__` may want other arguments.
    native: Any = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    error: BaseException = native.__new__(_class_like(kind), *args)
    JaxRuntimeError.__init__(cast(JaxRuntimeError, error), text)
    native.__init__(error, *args)
    return error


@lru_cache(maxsize=128)
def _class_like(kind: type[BaseException]) -> type[BaseException]:
    """A class that `except kind` and `except JaxRuntimeError` catch, and that reads like `kind`."""

    def init(self: BaseException, *args: Any) -> None:
        """The interpreter calls this with the text after `__new__`: the object is complete already."""

    def as_original(self: BaseException, protocol: Any) -> Any:
        return self.__cause__.__reduce_ex__(protocol)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    is_of_jax = issubclass(kind, JaxRuntimeError)
    bases = (kind,) if is_of_jax else (kind, JaxRuntimeError)
    methods = {
        "__init__": init,
        "__str__": BaseException.__str__
        if is_of_jax
        else kind.__str__,  # that of JAX gives the text
        "__reduce_ex__": as_original,
    }
    return type(kind.__name__, bases, {**names, **methods})
