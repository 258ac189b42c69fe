"""What a command writes: its result to standard output, everything else to standard error.

While a component is loaded and run, `sys.stdout` and file descriptor 1 lead to standard error: what author
code or the libraries below it print cannot mix with the result, not even from C. Text that comes from others
is written so that it cannot control the terminal. Colours are for terminals, and `NO_COLOR` turns them off.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from chainrule._errors import (
    ChainruleError,
    InputError,
    StorageError,
    missing_dependency,
)
from chainrule._visible import visible

if TYPE_CHECKING:
    from argparse import Namespace

# Package that a command needs → the extra that installs it.
_EXTRAS = {
    **dict.fromkeys(("httptools", "starlette", "uvicorn", "uvloop", "zstandard"), "serve"),
    **dict.fromkeys(("equinox", "jax", "lineax", "optax"), "jax"),
    **dict.fromkeys(("mcp", "mcp_types"), "mcp"),
    "matplotlib": "view",
}
_WIDEST = 2000  # characters of a line, where no terminal says how many fit
_MAX_FIRST = 32  # characters of cells in the first column that are not broken


def reserve_streams() -> None:
    """Open `/dev/null` in place of the descriptors 0, 1 and 2 that the shell has closed (`>&-`).

    Otherwise the next file or connection that is opened gets such a number, and what is printed goes there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # The two that are used without a look; both stay open until the process ends.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def write_text(text: str) -> None:
    """Write a result for people to standard output.

    Raises:
        InputError: it is closed (`output_closed`).
        StorageError: it cannot be written to.
    """
    with _write_errors():
        sys.stdout.write(visible(text))
        sys.stdout.flush()


def write_styled(text: str) -> None:
    """Write text of our own, which `strong` may have styled; errors as in `write_text`."""
    with _write_errors():
        sys.stdout.write(text)
        sys.stdout.flush()


def show(renderable: Any) -> None:
    """Write something that rich can show to standard output; errors as in `write_text`."""
    write_styled(renderable_text(renderable, is_coloured=takes_colours(1)))


def write_result(
    options: Namespace, facts: Any, shown: str | Callable[[], Any], to: ResultStream | None = None
) -> None:
    """Write a result, once, as its reader wants it; errors as in `write_text`.

    Args:
        options: of the command; with `--json` the result is one line of JSON.
        facts: the result for programs.
        shown: the result for people: text, or what makes something that rich can show.
        to: where it goes; standard output when not given.
    """
    write, render = (to.write_text, to.show) if to else (write_text, show)
    if options.json:
        import json

        write(json.dumps(facts) + "\n")
    elif isinstance(shown, str):
        write(shown)
    else:
        render(shown())


def write_error(text: str) -> None:
    """Write to standard error what is not the result."""
    sys.stderr.write(visible(text))


def takes_colours(descriptor: int) -> bool:
    """Whether a descriptor leads to a terminal that shows colours, and the user wants them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return os.isatty(descriptor)


def strong(text: str, descriptor: int, colour: str = "") -> str:
    """Text in bold, and in a colour, where a descriptor takes colours; the text is written as it is."""
    code = {"": "1", "red": "1;31"}[colour]
    return f"\x1b[{code}m{text}\x1b[0m" if takes_colours(descriptor) else text


class ResultStream:
    """The real standard output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Write the result as it is; on a terminal its control characters are written out."""
        if self.is_terminal:
            self.write_text(b"".join(pieces).decode(errors="backslashreplace"))
        else:
            self._write(pieces)

    def _write(self, pieces: Iterable[bytes | memoryview]) -> None:
        with _write_errors(), open(self._descriptor, "wb", closefd=False) as stream:
            for piece in pieces:
                stream.write(piece)

    def write_text(self, text: str) -> None:
        """Write a result as text."""
        self._write([visible(text).encode()])

    def show(self, renderable: Any) -> None:
        """Write something that rich can show."""
        text = renderable_text(renderable, is_coloured=takes_colours(self._descriptor))
        self._write([text.encode()])

    @property
    def is_terminal(self) -> bool:
        """Whether people read it."""
        return os.isatty(self._descriptor)


@contextmanager
def result_stream() -> Iterator[ResultStream]:
    """Send everything that is printed to standard error, and give the real standard output."""
    if sys.stdout is None:
        raise _closed()
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield ResultStream(saved)
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextmanager
def _write_errors() -> Iterator[None]:
    """End without a message, as other commands do, where the reader has closed the pipe."""
    if sys.stdout is None:
        raise _closed()
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes the stream when it ends, and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise StorageError(
            f"The result cannot be written to standard output: {error.strerror}.",
            code="output_failed",
        ) from error


def _closed() -> InputError:
    return InputError(
        "Standard output is closed, so the result cannot be written. Redirect it to a file, or to /dev/null.",
        code="output_closed",
    )


@contextmanager
def failures(*, as_json: bool = False, debug: bool = False) -> Iterator[None]:
    """Report an error of Chainrule, or a package that is missing, and exit with its code.

    Args:
        as_json: write the error as one JSON object.
        debug: write the whole traceback before it.
    """
    try:
        yield
    except ChainruleError as error:
        _leave(error, as_json, debug=debug)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        missing = missing_dependency(
            "This command needs", package, f"'chainrule[{_EXTRAS[package]}]'"
        )
        _leave(missing, as_json, debug=debug)


def _leave(error: ChainruleError, as_json: bool, *, debug: bool) -> NoReturn:
    if debug:
        import traceback

        write_error("".join(traceback.format_exception(error)))
    if as_json:
        write_error(f"{_as_json(error)}\n")
    else:
        sys.stderr.write(strong("Error:", 2, "red"))
        write_error(f" {_as_text(error)}\n")
    raise SystemExit(error.exit_code) from None


def _as_json(error: ChainruleError) -> str:
    facts = {
        "code": error.code,
        "message": error.message,
        "path": error.path,
        "details": error.details,
    }
    import json

    return json.dumps({"error": facts}, default=str)


def _as_text(error: ChainruleError) -> str:
    lines = [error.message]
    problems = error.details.get("problems", [])
    lines += [f"  - {problem['path']}: {problem['msg']}" for problem in problems[1:]]
    hidden = error.details.get("count", 0) - len(problems)
    if hidden > 0:
        lines.append(f"  … and {hidden} more")
    return "\n".join([*lines, f"[{error.code}]"])


# Words in cells whose meaning has a colour.
_STYLES = {
    **dict.fromkeys(("passed", "ok", "succeeded", "native", "ready", "idle"), "green"),
    **dict.fromkeys(("failed", "FAILED", "crashed", "breaks"), "red"),
    **dict.fromkeys(("running", "busy", "starting"), "cyan"),
    **dict.fromkeys(("left out", "queued", "cancelled"), "yellow"),
    "absent": "dim",
}


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    """A table that rich can show. No cell is cut, and short names in the first column are not broken, so that
    they can be copied."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    rows = list(rows)
    widest = max((len(row[0]) for row in rows), default=0)
    first, *others = columns
    table = Table(
        Column(first, overflow="fold", no_wrap=widest <= _MAX_FIRST),
        *(Column(name, overflow="fold") for name in others),
        title=Text(visible(title), style="bold") if title else None,
        title_justify="left",
        show_header=any(columns),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for row in rows:
        table.add_row(
            *(Text(visible(cell), _STYLES.get(cell.partition("\n")[0], "")) for cell in row)
        )
    return table


def renderable_text(renderable: Any, *, is_coloured: bool = False) -> str:
    """Anything that rich can show, as text that fits the terminal; without one, as wide as it needs.

    Control characters in it are written out; those of colours are ours.
    """
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(file=io.StringIO(), color_system=None, width=_WIDEST)
    width = _terminal_width()
    if width is None:
        width = max(80, Measurement.get(console, console.options, renderable).maximum)
    lines = console.render_lines(renderable, console.options.update_width(width), pad=False)
    system = ColorSystem.STANDARD if is_coloured else None
    text = io.StringIO()
    for line in lines:
        shown = ((visible(part.text), part.style) for part in line)
        written = (
            word if style is None else style.render(word, color_system=system)
            for word, style in shown
        )
        text.write("".join(written).rstrip() + "\n")
    return text.getvalue()


def _terminal_width() -> int | None:
    """The width of the terminal, if one of the streams leads to one, or what `COLUMNS` says."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"])
    for descriptor in range(3):
        with suppress(OSError):
            return os.get_terminal_size(descriptor).columns or None
    return None
