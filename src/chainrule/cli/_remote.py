"""Arguments of the commands that talk to a server."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from textwrap import shorten

from chainrule._errors import InputError
from chainrule.cli._arguments import add_token
from chainrule.client.internal import Component, HttpTransport, JobInfo, Server

_MAX_NOTE = 120  # characters in a table; `chainrule job logs` shows all


def add_server(parser: ArgumentParser) -> None:
    """The server that the command is about."""
    parser.add_argument("url", metavar="URL", help="of the server, such as http://localhost:8000")
    add_token(parser)


def add_job(parser: ArgumentParser) -> None:
    """One of its jobs."""
    add_server(parser)
    parser.add_argument(
        "job", metavar="JOB", help="id of the job; `chainrule job list URL` lists them"
    )


def open_server(options: Namespace, *, timeout_s: float = 30.0) -> Server:
    """The server that was asked for.

    Raises:
        InputError: the URL is not one, or the token file cannot be read.
    """
    token = _read_token(options.token_file)
    return HttpTransport(options.url, token=token, timeout=timeout_s).server


def open_served(options: Namespace) -> Component:
    """The served component that `add_component_or_url`'s arguments name.

    Raises:
        InputError: the URL is not one, or the token file cannot be read.
    """
    return Component.from_url(options.component, token=_read_token(options.token_file))


def _read_token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(
            f"The token file cannot be read: {reason}.", code="bad_token_file"
        ) from None


def job_row(job: JobInfo) -> tuple[str, ...]:
    """A job as a row of a table: id, call, state, progress, since, note."""
    share = "" if job.fraction is None else f"{100 * job.fraction:.0f} %"
    if job.queue_position is not None:
        share = f"{job.queue_position} before it"
    note = shorten(job.error["message"] if job.error else job.message or "", _MAX_NOTE)
    return (
        job.id,
        f"{job.component}/{job.endpoint}",
        job.state,
        share,
        _short_time(job.finished_at or job.started_at or job.submitted_at),
        note,
    )


def _short_time(text: str | None) -> str:
    return "" if text is None else text[:19].replace("T", " ")
