"""`chainrule logs`: of a job on a server, or of a container."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from chainrule.cli._remote import open_server
from chainrule.client._server import JobEvent, JobInfo

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """The job or the container, and whether to stay."""
    parser.add_argument(
        "url", metavar="URL|CONTAINER", help="of the server, or a container of `chainrule ps`"
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help="of the server, see `chainrule jobs`")
    parser.add_argument("--follow", "-f", action="store_true", help="until the job is over")
    parser.add_argument("--token-file", type=Path, help="with the token that the server asks for")
    parser.add_argument("--tail", type=int, metavar="LINES", help="of a container: the last ones")
    parser.add_argument("--engine", metavar="ENGINE", help="of a container: podman or docker")


def run(options: Namespace) -> int:
    """Print what was printed; exit with 1 if a job was followed and failed."""
    if options.job is None:
        from chainrule.cli import _images_list

        return _images_list.run(Namespace(**vars(options), container=options.url))
    server = open_server(options)
    if not options.follow:
        server.job(options.job)  # a job without output and no job at all look the same below
        sys.stdout.write(server.log(options.job))
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
        sys.stdout.write(json.dumps({"event": event.kind, "job": job, "line": event.line}) + "\n")
    elif event.line is not None:
        sys.stdout.write(f"{event.line}\n")
    elif event.job is not None:
        sys.stderr.write(f"{_standing(event.job)}\n")
    sys.stdout.flush()


def _standing(job: JobInfo) -> str:
    share = "" if job.fraction is None else f" {100 * job.fraction:.0f} %"
    note = job.error["message"] if job.error else job.message or ""
    return f"[{job.state}{share}] {note}"
