"""The flags of `tesseract-runtime`, and the environment variables behind them.

A setting comes from its option, else from `TESSERACT_RUNTIME_<NAME>`, else from `TESSERACT_<NAME>`.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from chainrule.compat.tesseract_core.runtime._settings import RuntimeConfig, from_environment

__all__ = ["COMMANDS", "ENDPOINT_COMMANDS", "make_parser", "read_settings"]

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
        pydantic.ValidationError: one of them has a value it cannot have.
    """
    given = {name: value for name in _SETTINGS if (value := getattr(options, name)) is not None}
    return RuntimeConfig(
        **{**from_environment(), **from_environment("TESSERACT_RUNTIME_"), **given}
    )


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
        parser.add_argument(f"--{name}", action="append", help="only this one; repeat for more")
    parser.add_argument("--eps", type=float, default=1e-4, help="step of the differences")
    parser.add_argument(
        "--eps-for", type=_path_and_step, action="append", metavar="PATH=VALUE", help="of one input"
    )
    parser.add_argument("--rtol", type=float, default=0.1, help="allowed relative error")
    parser.add_argument("--max-evals", type=int, default=1000, help="evaluations to spend")
    parser.add_argument("--max-output-samples", type=int, help="output elements to compare")
    parser.add_argument("--max-failures", type=int, default=10, help="failures to show")
    parser.add_argument("--seed", type=int, help="of the sampled elements")
    parser.add_argument("--show-progress", action="store_true", default=True)
    parser.add_argument("--no-show-progress", dest="show_progress", action="store_false")


def _path_and_step(text: str) -> tuple[str, Any]:
    path, separator, value = text.rpartition("=")
    if not separator:
        raise ValueError(text)
    return path, float(value)
