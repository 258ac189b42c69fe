"""The exception tree of Chainrule.

Every error a user can meet is a `ChainruleError` with a stable `code`. The code is the same in Python,
in the HTTP body (`application/problem+json`), in the command line's `--json` output and on the page
`docs/reference/errors.md`; programs decide on the code, never on the text.

    ChainruleError
    ├── InputError (ValueError)          the caller's mistake: exit code 2, HTTP 422
    │   ├── PathError (LookupError)      a path into the data that does not exist or cannot be used
    │   ├── DecodeError                  bytes that are not what they claim to be
    │   ├── NotGrantedError              a file, host or scheme outside what was granted
    │   └── LimitError                   larger or deeper than the limits allow: HTTP 413
    ├── DefinitionError (TypeError)      a component, schema, rule or module that is defined wrongly
    ├── ComponentError (RuntimeError)    the author's code failed: exit code 1, HTTP 500
    ├── CapabilityError (NotImplementedError)   asked for something this object cannot do: HTTP 404
    ├── StorageError (OSError)           a folder that is full, read-only or gone: HTTP 507
    └── TransportError (ConnectionError) the component could not be reached, or died: HTTP 502-504

A message says what was expected, what was found, where (a path, shapes and dtypes, never data) and how
to fix it. A package adds a subclass where callers need to tell a case apart, and passes `code=` where only
the reason differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chainrule._frames import users_traceback

__all__ = [
    "CapabilityError",
    "ChainruleError",
    "ComponentError",
    "DecodeError",
    "DefinitionError",
    "InputError",
    "LimitError",
    "NotGrantedError",
    "PathError",
    "StorageError",
    "TransportError",
]


class ChainruleError(Exception):
    """Base of every error that Chainrule raises on purpose.

    Attributes:
        code: stable, snake_case identifier of the reason.
        path: where in the data, in the path grammar of `chainrule._trees`; `None` when not in data.
        details: small JSON-ready facts (shapes, sizes, names), never array contents.
    """

    default_code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        path: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.path = path
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows for this error: those of the user, and the message."""
        from IPython import get_ipython  # which calls this

        shown = _rebuild(type(self), self.message, self.__dict__)  # without its causes
        own = users_traceback(self) or self.__traceback__
        return get_ipython().InteractiveTB.structured_traceback(type(self), shown, own, tb_offset=0)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default reduction replays `args` only and would lose the keyword-only facts.
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(cls: type[ChainruleError], message: str, state: dict[str, Any]) -> ChainruleError:
    error = cls.__new__(cls, message)
    error.__dict__.update(state)
    return error


class InputError(ChainruleError, ValueError):
    """The caller passed something that cannot be used."""

    default_code = "invalid_input"
    http_status = 422
    exit_code = 2


class PathError(InputError, LookupError):
    """A path does not exist in the data, is malformed, or cannot be used for what was asked."""

    default_code = "path_unknown"


class DecodeError(InputError):
    """Bytes or an encoded object that are not what they claim to be."""

    default_code = "decode_failed"


class NotGrantedError(InputError):
    """A file, folder, host or scheme outside what the operator granted."""

    default_code = "path_not_granted"


class LimitError(InputError):
    """Data larger, deeper or more numerous than the limits in force."""

    default_code = "limit_exceeded"
    http_status = 413


class DefinitionError(ChainruleError, TypeError):
    """A component, schema, rule or module is defined wrongly; its author has to change it."""

    default_code = "bad_definition"


class ComponentError(ChainruleError, RuntimeError):
    """The author's code failed, or returned something its own schema forbids.

    Attributes:
        remote_traceback: the author's traceback as text when the failure happened in another process
            and the operator lets it out; otherwise `None` (in-process failures chain `__cause__`).
    """

    default_code = "component_failed"

    def __init__(self, message: str, *, remote_traceback: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.remote_traceback = remote_traceback


class CapabilityError(ChainruleError, NotImplementedError):
    """The object is fine and the request is well-formed, but this object cannot do that."""

    default_code = "not_supported"
    http_status = 404
    exit_code = 2


def missing_dependency(needs: str, package: str | None, install: str) -> CapabilityError:
    """What to raise where an optional package is not installed.

    Args:
        needs: the beginning of the message, such as `"FMUs need"`.
        package: the package.
        install: what pip is to install.
    """
    return CapabilityError(
        f"{needs} the package {package}: pip install {install}.", code="missing_dependency"
    )


class StorageError(ChainruleError, OSError):
    """A folder that is full, read-only or gone."""

    default_code = "storage_failed"
    http_status = 507


class TransportError(ChainruleError, ConnectionError):
    """The component could not be reached, did not answer in time, or its process died."""

    default_code = "unreachable"
    http_status = 502
