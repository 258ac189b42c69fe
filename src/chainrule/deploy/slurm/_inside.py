"""What runs inside a job: the servers, and the command that collects where they are.

    python -m chainrule.deploy.slurm._inside serve [COMPONENT] --token-file FILE
    python -m chainrule.deploy.slurm._inside collect COUNT REGISTRY TOKEN_FILE < announcements

A server writes one line to standard output: its task and its URL. `collect` reads the lines of all servers
and writes the registry.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def main(arguments: list[str] | None = None) -> int:
    """Serve, or collect."""
    parser = ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve")
    server.add_argument("component", nargs="?", default=os.environ.get("CHAINRULE_COMPONENT"))
    server.add_argument("--token-file", type=Path, required=True)
    collector = commands.add_parser("collect")
    collector.add_argument("count", type=int)
    collector.add_argument("registry")
    collector.add_argument("token_file", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "serve":
        return _serve(options.component, options.token_file)
    return _write_registry(options.count, options.registry, options.token_file)


def _serve(component: str, token_file: Path) -> int:
    """Serve until the job ends."""
    from chainrule.serve import serve

    # Standard output is for the announcement alone: what the component prints goes to the job's errors.
    announcements = os.dup(1)
    os.dup2(2, 1)

    def announce(url: str) -> None:
        facts = {
            "task": int(os.environ.get("SLURM_PROCID", "0")),
            "url": f"http://{_host()}:{urlsplit(url).port}",
        }
        os.write(announcements, f"{json.dumps(facts)}\n".encode())

    # Other nodes have to reach the server, so it listens everywhere; callers need the token.
    serve(component, host="0.0.0.0", port=0, token_file=token_file, on_ready=announce)
    return 0


def _host() -> str:
    """This node's name within the cluster."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _write_registry(count: int, registry: str, token_file: Path) -> int:
    """Wait for every server, then write the registry; 1 when the servers end before that."""
    servers = collect(sys.stdin, count)
    if servers is None:
        sys.stderr.write("The servers ended before all of them were ready; see the errors above.\n")
        return 1
    content = {
        "job": os.environ.get("SLURM_JOB_ID"),
        "token": token_file.read_text().strip(),
        "servers": servers,
    }
    # Readers see the whole file or none, because it is renamed when it is complete. It has a token in it, so
    # only the user may read it.
    unfinished = Path(f"{registry}.unfinished")
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.rename(registry)
    return 0


def collect(lines: Iterable[str], count: int) -> list[dict[str, Any]] | None:
    """The announcements of `count` servers, by task; `None` when the lines end before."""
    servers: dict[int, dict[str, Any]] = {}
    for line in lines:
        found = json.loads(line)
        servers[found["task"]] = found
        if len(servers) == count:
            return [servers[task] for task in sorted(servers)]
    return None


if __name__ == "__main__":
    sys.exit(main())
