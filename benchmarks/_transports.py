"""The table of docs/how-to/choose-a-transport.md, with the figures of the last `make bench`."""

from __future__ import annotations

import re

_HEAD = ("how", "one small call", "8 MB there and back", "isolation", "choose it when")

# How, two cells that may name a claim in braces, isolation, when.
_LINES = (
    ("JAX component, inlined by `apply_component`", "nothing: part of your program", "nothing", "none",
     "it is written in JAX and runs in your process"),
    ("`Component.from_api`", "{no-op apply, in process}", "{8 MB there and back, in process}, copied",
     "none", "you trust it and its dependencies fit yours"),
    ("`Component.from_source`", "{no-op apply, own process}",
     "{8 MB there and back, own process}, shared memory", "a process, optionally its own environment",
     "it may crash, it blocks the interpreter, or it needs other settings"),
    ("`Component.from_url`, same host", "{no-op apply, same host}",
     "{8 MB there and back, same host}, shared memory", "a server with workers",
     "several programs share it, or it runs longer than your program"),
    ("`Component.from_url`, elsewhere", "{no-op apply, http} and the network",
     "{8 MB there and back, http} and the network, frames over HTTP", "a machine",
     "it needs another machine, GPU or licence"),
    ("a pool of processes, `chainrule.deploy.local`", "{call, pool of processes}", "shared memory",
     "many processes", "you need many evaluations, see [replicas](pool.md)"),
    ("a pool on Ray, `chainrule.deploy.ray`", "{call, pool on Ray}", "the object store", "many nodes",
     "you need many evaluations on several machines"),
    ("the command line", "{chainrule apply, NumPy component, cold}: a start of Python", "files",
     "a process per call", "shell scripts and batch systems"),
)  # fmt: skip


def table(page: str) -> str:
    """The table as markdown.

    Args:
        page: the text of docs/benchmarks.md.
    """
    figures = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", page, re.MULTILINE))
    day = re.search(r"^\d{4}-\d\d-\d\d", page, re.MULTILINE)
    rows = [_HEAD, ("---",) * len(_HEAD), *_LINES]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    filled = re.sub(r"\{([^}]+)\}", lambda claim: figures.get(claim[1], "not measured"), text)
    return f"{filled}\n\nMeasured on {day[0] if day else 'an unknown day'} with calls that do nothing.\n"
