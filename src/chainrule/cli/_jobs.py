"""`chainrule job list`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from chainrule.cli._remote import add_server, job_row, open_server
from chainrule.cli._streams import write_text
from chainrule.cli._tables import table_text

_STATES = ("queued", "running", "succeeded", "failed", "cancelled")


def add_arguments(parser: ArgumentParser) -> None:
    """The server, and which of its jobs."""
    add_server(parser)
    parser.add_argument("--state", choices=_STATES, help="only these")
    parser.add_argument("--limit", type=int, default=20, help="how many, newest first")


def run(options: Namespace) -> int:
    """List the jobs of a server."""
    jobs = open_server(options).jobs(state=options.state, limit=options.limit)
    if options.json:
        write_text(json.dumps([asdict(job) for job in jobs]) + "\n")
    else:
        columns = ("job", "call", "state", "progress", "since (UTC)", "")
        write_text(table_text(options.url, columns, map(job_row, jobs)))
    return 0
