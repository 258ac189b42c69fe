"""`chainrule check-gradients`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._arguments import add_component_or_url, add_folders, add_payload
from chainrule.cli._payload import read_payload
from chainrule.cli._source import is_url, open_component
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import renderable_text
from chainrule.runtime.internal import ComponentConfig
from chainrule.runtime.testing import check_gradients


def add_arguments(parser: ArgumentParser) -> None:
    """The component, a point, and what to look at there."""
    add_component_or_url(parser)
    add_payload(parser)
    add_folders(parser)
    for name, what in (
        ("input-paths", "inputs"),
        ("output-paths", "outputs"),
        ("endpoints", "endpoints"),
    ):
        parser.add_argument(
            f"--{name}", action="append", help=f"only these {what}; repeat for more"
        )
    parser.add_argument("--eps", type=float, help="step of the differences; automatic by default")
    parser.add_argument(
        "--eps-for", action="append", default=[], metavar="PATH=VALUE", help="step of one input"
    )
    parser.add_argument("--rtol", type=float, default=0.1, help="allowed relative error")
    parser.add_argument("--max-evals", type=int, default=1000, help="evaluations to spend")
    parser.add_argument("--max-output-samples", type=int, help="output elements to compare")
    parser.add_argument("--max-failures", type=int, default=10, help="wrong entries to show")
    parser.add_argument("--seed", type=int, default=0, help="of the sampled elements")
    parser.add_argument("--no-show-progress", dest="show_progress", action="store_false")


def run(options: Namespace) -> int:
    """Compare derivatives with finite differences; 1 when one is wrong."""
    with result_stream() as stdout:
        component, config = _open(options)
        payload = read_payload(
            options.payload, options.values, grants=config.grants, limits=config.limits
        )
        report = check_gradients(
            component,
            payload,
            input_paths=options.input_paths,
            output_paths=options.output_paths,
            endpoints=options.endpoints,
            eps=_eps(options),
            rtol=options.rtol,
            max_evals=options.max_evals,
            max_output_samples=options.max_output_samples,
            seed=options.seed,
            show_progress=options.show_progress,
        )
        if options.json:
            text = json.dumps(report.to_dict(options.max_failures)) + "\n"
        else:
            text = renderable_text(report.table(options.max_failures))
        stdout.write_text(text)
    return int(not report.passed)


def _open(options: Namespace) -> tuple[Any, ComponentConfig]:
    """The component, and what its payload may name."""
    if is_url(options.component):
        from chainrule.cli._remote import open_served

        return open_served(options), ComponentConfig(input_path=options.input_path)
    component = open_component(options, {"input_path": options.input_path})
    return component, component.config


def _eps(options: Namespace) -> Any:
    if not options.eps_for:
        return "auto" if options.eps is None else options.eps
    try:
        pairs = (entry.rpartition("=") for entry in options.eps_for)
        return {path: float(value) for path, _, value in pairs}
    except ValueError as error:
        raise InputError(
            "--eps-for takes PATH=VALUE with a number, for example --eps-for x=1e-4.",
            code="bad_option",
        ) from error
