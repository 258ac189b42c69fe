"""The batch script of a job that serves a component on every one of its tasks, and handles to the servers."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.client import Component

_BODY = """\
set -euo pipefail
umask 077

scratch="$(mktemp -d)"
token="/tmp/chainrule-${SLURM_JOB_ID}.token"
registry="${CHAINRULE_REGISTRY:-$PWD/chainrule-${SLURM_JOB_ID}.json}"
servers=""

finish() {
    if [ -n "$servers" ]; then
        # A signal to the servers lets them finish their calls; srun would kill them.
        scancel --quiet --signal=TERM "${SLURM_JOB_ID}.0" 2>/dev/null || kill "$servers" 2>/dev/null || true
        wait "$servers" || true
    fi
    srun --ntasks-per-node=1 --ntasks="${SLURM_JOB_NUM_NODES:-1}" rm -f "$token" || true
    rm -rf "$scratch" "$registry"
}
trap finish EXIT
trap 'exit 143' TERM INT

# Callers need a token of this job; sbcast copies it to every node.
@PYTHON@ -c 'import secrets; print(secrets.token_urlsafe(32))' > "$scratch/token"
sbcast --force --preserve "$scratch/token" "$token"

# Every server writes one line with its URL, and srun forwards the lines.
mkfifo "$scratch/announcements"
srun --ntasks=@SERVERS@ --kill-on-bad-exit=1 \\
    @COMMAND@ --token-file "$token" \\
    > "$scratch/announcements" &
servers=$!
exec 3< "$scratch/announcements"
@PYTHON@ -m chainrule.deploy.slurm._inside collect @SERVERS@ "$registry" "$scratch/token" <&3
export CHAINRULE_REGISTRY="$registry"

@DRIVER@
"""


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """What a job asks for.

    Attributes:
        component: file or folder of a component, on a file system that the nodes can read; or, with
            `image`, its place in the image.
        image: an Apptainer image to serve the component in.
        servers: number of servers.
        run: a command that uses the servers; the job ends with it. Without one they serve until the job
            ends.
        name: name of the job.
        cpus: CPUs per server.
        memory: memory per node, such as `16G`.
        gpus: GPUs per server.
        nodes: number of nodes; Slurm chooses when not given.
        time: time limit, such as `02:00:00`.
        partition: partition of the job.
        account: account that is charged.
        python: the interpreter on the nodes.

    Raises:
        InputError: neither a component nor an image, or no server (`bad_option`).
    """

    component: str | None = None
    image: str | None = None
    servers: int = 1
    run: str | None = None
    name: str = "chainrule"
    cpus: int = 1
    memory: str | None = None
    gpus: int = 0
    nodes: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    python: str = "python"

    def __post_init__(self) -> None:
        if self.component is None and self.image is None:
            raise InputError("Name a component, or an image that has one.", code="bad_option")
        if min(self.servers, self.cpus, self.nodes or 1) < 1 or self.gpus < 0:
            raise InputError("A job has at least one server on one core.", code="bad_option")
        words = (self.name, self.memory, self.time, self.partition, self.account)
        bad = [word for word in words if word is not None and not re.fullmatch(r"[\w.:+/-]+", word)]
        if bad:
            raise InputError(
                f"{bad[0]!r} cannot be written into a batch script.", code="bad_option"
            )


def batch_script(job: SlurmJob) -> str:
    """The text of the script.

    Example:
        >>> print(batch_script(SlurmJob(component="heat", servers=4)).splitlines()[2])
        #SBATCH --ntasks=4
    """
    body = _BODY
    for mark, text in (
        ("@PYTHON@", shlex.quote(job.python)),
        ("@SERVERS@", str(job.servers)),
        ("@COMMAND@", shlex.join(_server_command(job))),
        ("@DRIVER@", job.run or 'wait "$servers"'),
    ):
        body = body.replace(mark, text)
    return "\n".join(["#!/bin/bash", *_directives(job), "", body])


def _directives(job: SlurmJob) -> list[str]:
    wanted = {
        "job-name": job.name,
        "ntasks": job.servers,
        "cpus-per-task": job.cpus,
        "nodes": job.nodes,
        "gpus-per-task": job.gpus or None,
        "mem": job.memory,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
    }
    return [f"#SBATCH --{key}={value}" for key, value in wanted.items() if value is not None]


def _server_command(job: SlurmJob) -> list[str]:
    module = ["-m", "chainrule.deploy.slurm._inside", "serve"]
    if job.image is None:
        assert job.component is not None
        return [job.python, *module, str(Path(job.component).absolute())]
    devices = ["--nv"] if job.gpus else []
    component = [] if job.component is None else [job.component]
    return ["apptainer", "exec", *devices, job.image, "/opt/venv/bin/python", *module, *component]


def read_registry(file: str | Path | None = None, **options: Any) -> list[Component]:
    """A handle to every server of a job.

    Args:
        file: the registry; the one that `CHAINRULE_REGISTRY` names when not given, as it does within the
            job.
        **options: as `Component.from_url` takes them.

    Raises:
        InputError: there is no such file, or it is not a registry (`registry_missing`).
    """
    path = file or os.environ.get("CHAINRULE_REGISTRY", "")
    try:
        content = json.loads(Path(path).read_text())
        urls = [server["url"] for server in content["servers"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"Expected the registry of a job of `chainrule deploy slurm` at {str(path)!r}: {error}.",
            code="registry_missing",
        ) from error
    return [Component.from_url(url, token=content["token"], **options) for url in urls]
