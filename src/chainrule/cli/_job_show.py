"""`chainrule job show`: one job of a server."""

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
    """Print the facts of a job, one in a line."""
    facts = asdict(open_server(options).job(options.job))
    if options.json:
        write_text(json.dumps(facts) + "\n")
        return 0
    known = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, known))
    write_text("".join(f"{name:<{width}}  {value}\n" for name, value in known.items()))
    return 0
