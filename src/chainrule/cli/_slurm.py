"""`chainrule deploy slurm`: a batch script that serves components in a Slurm job."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chainrule._errors import StorageError
from chainrule.cli._output import write_result
from chainrule.deploy.slurm import SlurmJob, batch_script

_FIELDS = (
    "component", "image", "servers", "run", "name", "cpus", "memory", "gpus", "nodes", "time",
    "partition", "account", "python",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """The component, and what the job asks for."""
    parser.add_argument(
        "component",
        metavar="COMPONENT",
        nargs="?",
        help="File or folder of the component; with --image, its place in the image",
    )
    parser.add_argument(
        "--image", metavar="FILE.sif", help="Serve this Apptainer image (default: none)"
    )
    parser.add_argument("--servers", "-n", type=int, default=1, metavar="N", help="Start N servers")
    parser.add_argument(
        "--run",
        metavar="COMMAND",
        help="Run this when the servers are ready; the job ends with it (default: serve until stopped)",
    )
    parser.add_argument("--name", default="chainrule", help="Name of the job")
    parser.add_argument("--cpus", type=int, default=1, metavar="N", help="CPUs per server")
    parser.add_argument("--memory", help="Memory per node, such as 16G (default: the cluster's)")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs per server")
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="Spread the servers over N nodes (default: Slurm chooses)",
    )
    parser.add_argument(
        "--time", help="Time limit of the job, such as 02:00:00 (default: the cluster's)"
    )
    parser.add_argument("--partition", help="Partition of the job (default: the cluster's)")
    parser.add_argument("--account", help="Account that is charged (default: the user's)")
    parser.add_argument("--python", default="python", help="Python interpreter on the nodes")
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="Write the script to this file (default: standard output)",
    )
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    script = batch_script(SlurmJob(**{name: getattr(options, name) for name in _FIELDS}))
    if options.output is None:
        write_result(options, {"script": script}, script)
        return 0
    try:
        options.output.write_text(script, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write {options.output}: {error.strerror}.") from error
    text = str(options.output)
    write_result(options, {"written": text}, f"{text}\n")
    return 0
