"""`chainrule job list|show|logs|cancel`: the jobs of a server."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from chainrule._describe import did_you_mean
from chainrule._errors import InputError
from chainrule.cli._output import make_table, write_error, write_result, write_text
from chainrule.cli._sources import add_server, open_server
from chainrule.client import JobEvent, JobInfo

_STATES = ("queued", "running", "succeeded", "failed", "cancelled")


def add_list_arguments(parser: ArgumentParser) -> None:
    """The server, and which of its jobs."""
    add_server(parser)
    parser.add_argument(
        "--state", choices=_STATES, help="List only jobs in this state (default: all)"
    )
    parser.add_argument(
        "--component", metavar="NAME", help="List only jobs of this component (default: all)"
    )
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="List the newest N jobs")
    parser.set_defaults(handler=_list)


def _list(options: Namespace) -> int:
    jobs = open_server(options).jobs(
        state=options.state, component=options.component, limit=options.limit
    )
    if not jobs and options.component is not None:
        _check_component(options)
    facts = [asdict(job) for job in jobs]
    write_result(options, facts, (lambda: jobs_table(options.url, jobs)) if jobs else "No jobs.\n")
    return 0


def _check_component(options: Namespace) -> None:
    """Refuse a component without jobs that the server does not have; it may have had others before."""
    served = [facts["name"] for facts in open_server(options).status()["components"]]
    if options.component not in served:
        raise InputError(
            f"There are no jobs of {options.component!r}, and the server has no such component; it has "
            f"{', '.join(served)}.{did_you_mean(options.component, served)}",
            code="component_missing",
        )


def jobs_table(title: str, jobs: Iterable[JobInfo]) -> Any:
    """A table of jobs that rich can show."""
    return make_table(title, ("job", "state", "since (UTC)", "call"), map(_row, jobs))


def _row(job: JobInfo) -> tuple[str, ...]:
    """Narrow cells first: what is left of a line is for the message under the call."""
    share = "" if job.fraction is None else f"{100 * job.fraction:.0f} %"
    if job.queue_position is not None:
        share = f"{job.queue_position} before it"
    since = job.finished_at or job.started_at or job.submitted_at
    note = " ".join(_note(job).split())
    call = f"{job.component}/{job.endpoint}"
    is_final = job.state == "succeeded"
    return (
        job.id,
        job.state if is_final or not share else f"{job.state}\n{share}",
        "" if since is None else since[:19].replace("T", "\n"),
        f"{call}\n{note}" if note else call,
    )


def _note(job: JobInfo) -> str:
    return job.error["message"] if job.error else job.message or ""


def add_show_arguments(parser: ArgumentParser) -> None:
    """The job."""
    _add_job(parser)
    parser.set_defaults(handler=_show)


def _add_job(parser: ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument(
        "job", metavar="JOB", help="Id of the job; `chainrule job list URL` lists them"
    )


def _show(options: Namespace) -> int:
    """Print the facts of a job, one per line."""
    facts = asdict(open_server(options).job(options.job))
    known = {name: value for name, value in facts.items() if value is not None}
    if "error" in known:
        known["error"] = "{message}\n[{code}]".format(**known["error"])
    rows = [(name, str(value)) for name, value in known.items()]
    write_result(options, facts, lambda: make_table("", ("", ""), rows))
    return 0


def add_logs_arguments(parser: ArgumentParser) -> None:
    """The job, and whether to follow it."""
    _add_job(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="Follow the job until it ends")
    parser.set_defaults(handler=_logs)


def _logs(options: Namespace) -> int:
    """Print the output; exit with 1 if a job was followed and failed."""
    server = open_server(options)
    if not options.follow:
        server.job(options.job)  # raises for an unknown job, whose log would be empty
        log = server.log(options.job)
        write_text(log)
        if not log and not options.json:
            write_error("The job has written nothing.\n")
        return 0
    state = ""
    for event in server.events(options.job):
        _write_event(event, options.json)
        if event.job is not None:
            state = event.job.state
    return 0 if state == "succeeded" else 1


def _write_event(event: JobEvent, as_json: bool) -> None:
    """Lines of the log go to standard output, changes of state to standard error."""
    if as_json:
        job = None if event.job is None else asdict(event.job)
        write_text(json.dumps({"event": event.kind, "job": job, "line": event.line}) + "\n")
    elif event.line is not None:
        write_text(f"{event.line}\n")
    elif event.job is not None:
        share = "" if event.job.fraction is None else f" {100 * event.job.fraction:.0f} %"
        write_error(f"[{event.job.state}{share}] {_note(event.job)}\n")


def add_cancel_arguments(parser: ArgumentParser) -> None:
    """The job."""
    _add_job(parser)
    parser.set_defaults(handler=_cancel)


def _cancel(options: Namespace) -> int:
    """Cancel a job; exit with 1 if it had ended already."""
    job = open_server(options).cancel(options.job)
    is_cancelled = job.state == "cancelled"
    already = "" if is_cancelled else " already"
    write_result(options, asdict(job), f"{job.id} {job.state}{already}\n")
    return 0 if is_cancelled else 1
