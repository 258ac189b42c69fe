"""`chainrule job logs`: the output of a job."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from chainrule.cli._remote import add_job, open_server
from chainrule.cli._streams import write_error, write_text
from chainrule.client.internal import JobEvent, JobInfo


def add_arguments(parser: ArgumentParser) -> None:
    """The job, and whether to follow it."""
    add_job(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="Follow the job until it ends")


def run(options: Namespace) -> int:
    """Print the output; exit with 1 if a job was followed and failed."""
    server = open_server(options)
    if not options.follow:
        server.job(options.job)  # a job without output and no job at all look the same below
        write_text(server.log(options.job))
        return 0
    state = ""
    for event in server.events(options.job):
        _show(event, options.json)
        if event.job is not None:
            state = event.job.state
    return 0 if state == "succeeded" else 1


def _show(event: JobEvent, as_json: bool) -> None:
    """Lines of the log are the output; where the job stands goes beside it."""
    if as_json:
        job = None if event.job is None else asdict(event.job)
        write_text(json.dumps({"event": event.kind, "job": job, "line": event.line}) + "\n")
    elif event.line is not None:
        write_text(f"{event.line}\n")
    elif event.job is not None:
        write_error(f"{_standing(event.job)}\n")


def _standing(job: JobInfo) -> str:
    share = "" if job.fraction is None else f" {100 * job.fraction:.0f} %"
    note = job.error["message"] if job.error else job.message or ""
    return f"[{job.state}{share}] {note}"
