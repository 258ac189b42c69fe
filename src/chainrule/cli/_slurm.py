"""`chainrule deploy slurm`: a batch script that serves components in a Slurm job."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from chainrule._errors import StorageError
from chainrule.deploy.slurm import SlurmJob, batch_script

_FIELDS = (
    "component", "image", "servers", "run", "name", "cpus", "memory", "gpus", "nodes", "time",
    "partition", "account", "python",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """The component, and what the job asks for."""
    parser.add_argument("component", metavar="COMPONENT", nargs="?", help="its file or folder")
    parser.add_argument("--image", metavar="FILE.sif", help="an Apptainer image to run it in")
    parser.add_argument("--servers", "-n", type=int, default=1, help="how many")
    parser.add_argument("--run", metavar="COMMAND", help="uses the servers; the job ends with it")
    parser.add_argument("--name", default="chainrule", help="of the job")
    parser.add_argument("--cpus", type=int, default=1, help="per server")
    parser.add_argument("--memory", help="per node, such as 16G")
    parser.add_argument("--gpus", type=int, default=0, help="per server")
    parser.add_argument("--nodes", type=int, help="to spread over")
    parser.add_argument("--time", help="limit, such as 02:00:00")
    parser.add_argument("--partition", help="to wait in")
    parser.add_argument("--account", help="that pays")
    parser.add_argument("--python", default="python", help="the interpreter on the nodes")
    parser.add_argument(
        "--output", "-o", type=Path, help="file to write; standard output by default"
    )


def run(options: Namespace) -> int:
    """Write the script."""
    script = batch_script(SlurmJob(**{name: getattr(options, name) for name in _FIELDS}))
    if options.output is None:
        sys.stdout.write(json.dumps({"script": script}) + "\n" if options.json else script)
        return 0
    try:
        options.output.write_text(script, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write {options.output}: {error.strerror}.") from error
    text = str(options.output)
    sys.stdout.write(f"{json.dumps({'written': text}) if options.json else text}\n")
    return 0
