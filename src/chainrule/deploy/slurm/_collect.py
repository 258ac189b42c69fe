"""Reads the announcements of a job's servers and writes its registry, whole and at once.

python -m chainrule.deploy.slurm._collect COUNT REGISTRY TOKEN_FILE < announcements
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def main(count: str, registry: str, token_file: str) -> int:
    """Wait for every server, then write the registry; 1 when the servers end before that."""
    servers = collect(sys.stdin, int(count))
    if servers is None:
        sys.stderr.write("The servers ended before all of them were ready; see the errors above.\n")
        return 1
    content = {
        "job": os.environ.get("SLURM_JOB_ID"),
        "token": Path(token_file).read_text().strip(),
        "servers": servers,
    }
    # Whoever sees the file sees all of it, and nobody but the user does.
    unfinished = Path(f"{registry}.unfinished")
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.rename(registry)
    return 0


def collect(lines: Iterable[str], count: int) -> list[dict[str, Any]] | None:
    """The announcements of so many servers, by task; `None` when the lines end before."""
    servers: dict[int, dict[str, Any]] = {}
    for line in lines:
        found = json.loads(line)
        servers[found["task"]] = found
        if len(servers) == count:
            return [servers[task] for task in sorted(servers)]
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
