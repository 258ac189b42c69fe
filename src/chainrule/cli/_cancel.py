"""`chainrule job cancel`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from chainrule.cli._remote import add_job, open_server
from chainrule.cli._streams import write_text


def add_arguments(parser: ArgumentParser) -> None:
    """The job."""
    add_job(parser)


def run(options: Namespace) -> int:
    """End a job; exit with 1 if it was over already."""
    job = open_server(options).cancel(options.job)
    text = json.dumps(asdict(job)) if options.json else f"{job.id} {job.state}"
    write_text(f"{text}\n")
    return 0 if job.state == "cancelled" else 1
