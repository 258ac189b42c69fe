"""One server of a job: serves a component and announces itself in one line on standard output.

python -m chainrule.deploy.slurm._server COMPONENT --token-file FILE
"""

from __future__ import annotations

import json
import os
import socket
from argparse import ArgumentParser
from pathlib import Path
from urllib.parse import urlsplit

from chainrule.serve import serve


def main() -> None:
    """Serve until the job ends."""
    parser = ArgumentParser()
    parser.add_argument("component", nargs="?", default=os.environ.get("CHAINRULE_COMPONENT"))
    parser.add_argument("--token-file", type=Path, required=True)
    options = parser.parse_args()
    # Standard output is for the announcement alone: what the component prints goes to the job's errors.
    announcements = os.dup(1)
    os.dup2(2, 1)

    def announce(url: str) -> None:
        facts = {
            "task": int(os.environ.get("SLURM_PROCID", "0")),
            "url": f"http://{_host()}:{urlsplit(url).port}",
        }
        os.write(announcements, f"{json.dumps(facts)}\n".encode())

    # Other nodes have to reach it; the token keeps everybody else out.
    serve(
        options.component, host="0.0.0.0", port=0, token_file=options.token_file, on_ready=announce
    )


def _host() -> str:
    """This node's name within the cluster."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


if __name__ == "__main__":
    main()
