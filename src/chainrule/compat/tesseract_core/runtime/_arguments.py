"""The flags of `tesseract-runtime`, and the environment variables behind them.

A setting comes from its option, else from `TESSERACT_RUNTIME_<NAME>`, else from `TESSERACT_<NAME>`.
Options of a command have variables with the command's name in them, such as `TESSERACT_RUNTIME_SERVE_PORT`.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chainrule.compat.tesseract_core.runtime._settings import RuntimeConfig, from_environment

ENDPOINT_COMMANDS = {
    "apply": "apply",
    "jacobian": "jacobian",
    "jacobian-vector-product": "jacobian_vector_product",
    "vector-jacobian-product": "vector_jacobian_product",
    "abstract-eval": "abstract_eval",
}
COMMANDS = {
    **{name: f"Call the endpoint {name}." for name in ENDPOINT_COMMANDS},
    "health": "Say that all is well.",
    "test": "Run one regression test and print its outcome.",
    "openapi-schema": "Print the OpenAPI document.",
    "check": "Load the component and say whether it is one.",
    "check-gradients": "Compare derivatives with finite differences.",
    "serve": "Serve the component over HTTP.",
}
_SETTINGS = [name for name in RuntimeConfig.model_fields if name != "api_path"]


class UsageError(Exception):
    """An option has a value that it cannot have."""


def make_parser() -> ArgumentParser:
    """The whole command line."""
    parser = ArgumentParser(
        "chainrule-tesseract-runtime",
        description="Run the component whose file TESSERACT_API_PATH names.",
        allow_abbrev=False,
    )
    for name in _SETTINGS:
        _add_setting(parser, name)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name in ENDPOINT_COMMANDS or name in ("test", "check-gradients"):
            command.add_argument("payload", help="JSON, or @file")
        if name == "check-gradients":
            _add_check_options(command)
        if name == "serve":
            _add_serve_options(command)
    return parser


def read_settings(options: Namespace) -> RuntimeConfig:
    """The settings in force.

    Raises:
        pydantic.ValidationError: a variable `TESSERACT_<NAME>` has a value it cannot have.
        UsageError: an option, or the variable behind it, has.
    """
    settings = RuntimeConfig.model_validate(from_environment())
    given = {name: value for name in _SETTINGS if (value := getattr(options, name)) is not None}
    changes = {**from_environment("TESSERACT_RUNTIME_"), **given}
    try:
        return (
            RuntimeConfig.model_validate({**from_environment(), **changes}) if changes else settings
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag = f"--{'.'.join(map(str, first['loc'])).replace('_', '-')}"
        raise UsageError(f"Invalid value for {flag}: {first['msg']}.") from error


def _add_setting(parser: ArgumentParser, name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    default = RuntimeConfig.model_fields[name].default
    text = f"default {default!r}; also TESSERACT_RUNTIME_{name.upper()}"
    if isinstance(default, bool):
        parser.add_argument(flag, action="store_true", default=None, help=text)
    else:
        parser.add_argument(flag, help=text)


def _add_serve_options(parser: ArgumentParser) -> None:
    for name, default in (("host", "127.0.0.1"), ("port", 8000), ("num_workers", 1)):
        variable = f"TESSERACT_RUNTIME_SERVE_{name.upper()}"
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            default=os.environ.get(variable, default),
            help=f"default {default}; also {variable}",
        )
    # What the ancestor's parts tell each other: a pipe that the starting process holds open.
    parser.add_argument("--parent-pipe-fd", type=int, help=SUPPRESS)
    # Not the ancestor's: it lets anybody call.
    parser.add_argument(
        "--token-file",
        type=Path,
        default=os.environ.get("TESSERACT_RUNTIME_SERVE_TOKEN_FILE"),
        help="callers must send the token in this file; also TESSERACT_RUNTIME_SERVE_TOKEN_FILE",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=os.environ.get("TESSERACT_RUNTIME_SERVE_INSECURE") == "1",
        help="listen beyond loopback without one; also TESSERACT_RUNTIME_SERVE_INSECURE=1",
    )


def _add_check_options(parser: ArgumentParser) -> None:
    for name in ("input-paths", "output-paths", "endpoints"):
        _add_check_option(parser, name, action="append", help="only this one; repeat for more")
    _add_check_option(parser, "eps", type=float, default=1e-4, help="step of the differences")
    _add_check_option(
        parser,
        "eps-for",
        type=_path_and_step,
        action="append",
        metavar="PATH=VALUE",
        help="step of one input; repeat for more",
    )
    _add_check_option(parser, "rtol", type=float, default=0.1, help="allowed relative error")
    _add_check_option(parser, "max-evals", type=int, default=1000, help="evaluations to spend")
    _add_check_option(parser, "max-output-samples", type=int, help="output elements to compare")
    _add_check_option(parser, "max-failures", type=int, default=10, help="failures to show")
    _add_check_option(parser, "seed", type=int, help="of the sampled elements")
    shown = os.environ.get(f"{_CHECK}SHOW_PROGRESS", "1").lower() not in ("0", "false", "no", "off")
    parser.add_argument("--show-progress", action="store_true", default=shown)
    parser.add_argument("--no-show-progress", dest="show_progress", action="store_false")


_CHECK = "TESSERACT_RUNTIME_CHECK_GRADIENTS_"


def _add_check_option(parser: ArgumentParser, name: str, **facts: Any) -> None:
    """An option, and its variable; of an option that can be repeated it has words."""
    text = os.environ.get(f"{_CHECK}{name.replace('-', '_').upper()}")
    if text is not None:
        parse = facts.get("type", str)
        facts["default"] = [parse(t) for t in text.split()] if "action" in facts else text
    parser.add_argument(f"--{name}", **facts)


def _path_and_step(text: str) -> tuple[str, float]:
    path, separator, value = text.partition("=")
    if not (path and separator):
        raise ValueError(text)
    return path, float(value)
