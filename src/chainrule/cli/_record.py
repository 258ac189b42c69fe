"""`chainrule record`: make a regression test of what a component answers now."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from chainrule._errors import InputError
from chainrule.cli._arguments import add_component_or_url, add_payload
from chainrule.cli._endpoints import endpoint_name
from chainrule.cli._payload import read_payload
from chainrule.cli._source import component_folder, opened
from chainrule.cli._streams import result_stream
from chainrule.runtime.internal import ComponentConfig
from chainrule.runtime.testing import record


def add_arguments(parser: ArgumentParser) -> None:
    """The component, the call, and the file to write."""
    add_component_or_url(parser)
    parser.add_argument("endpoint", metavar="ENDPOINT", help="for example apply or vjp")
    add_payload(parser)
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        help="Write the test case to this file (default: test_cases/test_ENDPOINT_N.json)",
    )
    parser.add_argument(
        "--expect-error",
        action="store_true",
        help="Record the exception that the call raises; without it a failing call records nothing",
    )


def run(options: Namespace) -> int:
    """Call the endpoint and write the test case."""
    with result_stream() as stdout, opened(options) as component:
        endpoint = endpoint_name(options.endpoint)
        config = getattr(component, "config", None) or ComponentConfig()
        payload = read_payload(
            options.payload, options.values, grants=config.grants, limits=config.limits
        )
        folder = component_folder(options) / "test_cases"
        file = options.output or _free_name(folder, f"test_{endpoint}")
        if file.exists():
            raise InputError(f"{file} exists already; nothing was written.", code="file_exists")
        record(component, endpoint, payload, path=file, expect_exception=options.expect_error)
        text = json.dumps({"written": str(file)}) if options.json else str(file)
        stdout.write_text(f"{text}\n")
    return 0


def _free_name(folder: Path, stem: str) -> Path:
    count = 1
    while (folder / f"{stem}_{count}.json").exists():
        count += 1
    return folder / f"{stem}_{count}.json"
