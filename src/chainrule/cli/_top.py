"""`chainrule top`: what a server does, live in the terminal."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from time import sleep
from typing import Any

from chainrule.cli._remote import add_server, job_row, open_server
from chainrule.cli._streams import write_text
from chainrule.cli._tables import make_table, renderable_text
from chainrule.client.internal import JobInfo, Server
from chainrule.runtime.internal import full_name

_JOBS = 12


def add_arguments(parser: ArgumentParser) -> None:
    """The server, and how often to look."""
    add_server(parser)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="how often")
    parser.add_argument("--once", action="store_true", help="look once and leave")


def run(options: Namespace) -> int:
    """Show load, queue, latency, workers and jobs until Ctrl-C; once where nobody can watch."""
    server = open_server(options)
    if options.json:
        write_text(json.dumps(server.status()) + "\n")
    elif options.once or not _can_be_redrawn():
        write_text(renderable_text(_view(options.url, server)))
    else:
        _watch(options, server)
    return 0


def _can_be_redrawn() -> bool:
    """Whether standard output is a terminal that can show one view after the other in one place."""
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return os.environ.get("TERM") not in ("dumb", "unknown")


def _watch(options: Namespace, server: Server) -> None:
    from rich.console import Console
    from rich.live import Live

    view = _view(options.url, server)
    screen = Live(view, console=Console(), screen=True, auto_refresh=False)
    try:
        with screen as live:
            while True:
                sleep(options.every)
                live.update(_view(options.url, server), refresh=True)
    except KeyboardInterrupt:
        return


def _view(url: str, server: Server) -> Any:
    from rich.console import Group

    status = server.status()
    return Group(
        _headline(url, status),
        _workers(status["workers"]),
        _jobs(server.jobs(limit=_JOBS)),
    )


def _headline(url: str, status: Mapping[str, Any]) -> Any:
    requests, queue, latency = status["requests"], status["queue"], status["latency_s"]
    names = ", ".join(full_name(c["name"], c["version"]) for c in status["components"])
    times = ", ".join(f"{name} {_milliseconds(value)}" for name, value in latency.items())
    jobs = ", ".join(f"{count} {state}" for state, count in status["jobs"].items() if count)
    rows = (
        ("components", names),
        ("up", f"{status['uptime_s']:.0f} s, Chainrule {status['version']}"),
        (
            "requests",
            f"{requests['per_second']:.1f}/s, {requests['in_flight']} in flight, "
            f"{requests['total']} in all, {requests['errors']} failed",
        ),
        ("queue", f"{queue['length']} of {queue['limit']}"),
        ("latency", times),
        ("jobs", jobs or "none"),
    )
    return make_table(url, ("", ""), rows)


def _workers(workers: Sequence[Mapping[str, Any]]) -> Any:
    columns = ("worker", "component", "pid", "state", "restarts")
    rows = [
        (str(w["id"]), w["component"], str(w["pid"] or ""), w["state"], str(w["restarts"]))
        for w in workers
    ]
    return make_table("workers", columns, rows)


def _jobs(jobs: Sequence[JobInfo]) -> Any:
    columns = ("job", "call", "state", "progress", "since (UTC)", "")
    return make_table("jobs", columns, map(job_row, jobs))


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3g} ms"
