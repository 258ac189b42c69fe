"""`chainrule image run`: serve an image, or have it answer one call."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from chainrule._errors import InputError
from chainrule.deploy.images import RunOptions, call_image, find_engine, start_container


def add_arguments(parser: ArgumentParser) -> None:
    """The image, what it is given, and maybe a call."""
    parser.add_argument(
        "image", metavar="IMAGE", help="built by chainrule image build, or a Tesseract's"
    )
    parser.add_argument(
        "call",
        metavar="CALL",
        nargs="*",
        help="one call, such as: apply '{\"inputs\": {…}}'. Without it the image is served until "
        "`chainrule image stop`",
    )
    parser.add_argument("--gpus", action="append", help="all, or a device; repeat for more")
    parser.add_argument("--memory", "-m", help="the most it may use, such as 2g")
    parser.add_argument(
        "--volume", "-v", action="append", default=[], metavar="HERE:THERE[:ro|rw]", help="a folder"
    )
    parser.add_argument("--env", "-e", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--network", help="of the engine, or host")
    parser.add_argument("--user", metavar="UID[:GID]", help="to run as")
    parser.add_argument(
        "--input-path", "-i", type=Path, help="folder that callers may name files in"
    )
    parser.add_argument("--output-path", "-o", type=Path, help="folder for files of runs")
    parser.add_argument("--workers", type=int, default=1, help="processes that answer calls")
    parser.add_argument("--startup-timeout", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--engine", metavar="ENGINE", help="podman or docker")


def run(options: Namespace) -> int:
    """Make the call, or start a server and say where it is."""
    engine = find_engine(options.engine)
    given = RunOptions(
        gpus=options.gpus,
        memory=options.memory,
        volumes=options.volume,
        env=_variables(options.env),
        network=options.network,
        user=options.user,
        input_path=options.input_path,
        output_path=options.output_path,
        workers=options.workers,
    )
    if options.call:
        return call_image(options.image, options.call, given, engine=engine)
    container = start_container(
        options.image,
        given,
        engine=engine,
        owned=False,
        startup_timeout=options.startup_timeout,
    )
    facts = {"container": container.name, "url": container.url, "token": container.token}
    lines = [f"{name}: {value}" for name, value in facts.items() if value is not None]
    sys.stdout.write((json.dumps(facts) if options.json else "\n".join(lines)) + "\n")
    return 0


def _variables(entries: list[str]) -> dict[str, str]:
    if not all("=" in entry for entry in entries):
        raise InputError("--env takes NAME=VALUE.", code="bad_option")
    return dict(entry.partition("=")[::2] for entry in entries)
