"""From errors to messages on standard error and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from chainrule._errors import CapabilityError, ChainruleError
from chainrule.cli._streams import write_error

# Which extra brings a package that commands need.
_EXTRAS = {
    **dict.fromkeys(("httptools", "starlette", "uvicorn", "uvloop", "zstandard"), "serve"),
    **dict.fromkeys(("equinox", "jax", "lineax", "optax"), "jax"),
    "matplotlib": "view",
}


@contextmanager
def failures(*, as_json: bool = False) -> Iterator[None]:
    """Report an error of Chainrule, or a package that is missing, without a traceback; exit with its code.

    Args:
        as_json: write the error as one JSON object.
    """
    try:
        yield
    except ChainruleError as error:
        _leave(error, as_json)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        missing = CapabilityError(
            f"This command needs the package {package}: pip install 'chainrule[{_EXTRAS[package]}]'.",
            code="missing_dependency",
        )
        _leave(missing, as_json)


def _leave(error: ChainruleError, as_json: bool) -> NoReturn:
    text = _as_json(error) if as_json else _as_text(error)
    write_error(f"{text}\n")
    raise SystemExit(error.exit_code) from None


def _as_json(error: ChainruleError) -> str:
    import json

    facts = {
        "code": error.code,
        "message": error.message,
        "path": error.path,
        "details": error.details,
    }
    return json.dumps({"error": facts}, default=str)


def _as_text(error: ChainruleError) -> str:
    lines = [f"Error: {error.message}"]
    problems = error.details.get("problems", [])
    lines += [f"  - {problem['path']}: {problem['msg']}" for problem in problems[1:]]
    hidden = error.details.get("count", 0) - len(problems)
    if hidden > 0:
        lines.append(f"  … and {hidden} more")
    return "\n".join([*lines, f"[{error.code}]"])
