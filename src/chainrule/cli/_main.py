"""Which commands there are. Each is a module with `add_arguments(parser)` and `run(arguments) -> exit code`.

Only the module of the command that was asked for is imported, and the overview not even needs `argparse`:
the shell is where a second of imports is felt. (Measured: typer alone costs as much as pydantic.)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["COMMANDS", "main", "make_parser"]


class Command(NamedTuple):
    """A command: the module that has it, and one line of help."""

    module: str
    help: str


COMMANDS = {
    "init": Command("_init", "Start a component from a template."),
    "check": Command("_check", "Load a component; say what it can do or what is wrong."),
    "apply": Command("_endpoints", "Compute the outputs for some inputs."),
    "jacobian": Command("_endpoints", "Differentiate outputs with respect to inputs."),
    "jvp": Command("_endpoints", "Push a tangent of the inputs forward."),
    "vjp": Command("_endpoints", "Pull a cotangent of the outputs back."),
    "hvp": Command("_endpoints", "Multiply the Hessian of weighed outputs with a tangent."),
    "value-and-vjp": Command("_endpoints", "Outputs, and a cotangent pulled back, in one call."),
    "abstract-eval": Command("_endpoints", "Shapes and dtypes of the outputs."),
    "intermediates": Command("_endpoints", "Values that a component tags on its way."),
    "inspect": Command("_inspect", "Show inputs, outputs and endpoints of a component."),
    "schema": Command("_schema", "Print the OpenAPI document, or a part of it."),
    "diff": Command("_diff", "Say what a newer component breaks for callers."),
    "check-gradients": Command("_check_gradients", "Check derivatives against finite differences."),
    "test": Command("_test", "Run the regression tests of a component."),
    "record": Command("_record", "Keep a call and its result as a regression test."),
    "order": Command("_order", "Search a cheap order for a Jacobian of a JAX function."),
    "serve": Command("_serve", "Serve components over HTTP."),
    "top": Command("_top", "Watch load, queue, latency and jobs of a server."),
    "dashboard": Command("_dashboard", "Watch several servers on one page."),
    "jobs": Command("_jobs", "List the jobs of a server."),
    "logs": Command("_logs", "Print what a job or a container has written, or follow a job."),
    "cancel": Command("_cancel", "End a job of a server."),
    "build": Command("_images_build", "Build a container image of a component."),
    "run": Command("_images_run", "Serve an image, or have it answer one call."),
    "ps": Command("_images_list", "List containers of components."),
    "stop": Command("_images_list", "Stop and remove containers."),
    "list": Command("_images_list", "List images of components."),
    "slurm": Command("_slurm", "Write a batch script that serves components in a Slurm job."),
}

# The peer's names, and their like.
_ALIASES = {
    "jacobian-vector-product": "jvp",
    "vector-jacobian-product": "vjp",
    "hessian-vector-product": "hvp",
    "openapi-schema": "schema",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `chainrule` command; always leaves by `SystemExit`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ("-h", "--help"):
        sys.stdout.write(_overview())
        raise SystemExit(0)
    if given and given[0] == "--version":
        from chainrule import __version__

        sys.stdout.write(f"{__version__}\n")
        raise SystemExit(0)
    if not given or _ALIASES.get(given[0], given[0]) not in COMMANDS:
        sys.stderr.write(_unknown(given[0]) if given else _overview())
        raise SystemExit(2)
    raise SystemExit(_run(_ALIASES.get(given[0], given[0]), given[1:]))


def make_parser(name: str) -> ArgumentParser:
    """The parser of what stands behind the name of a command."""
    from argparse import ArgumentParser

    command = COMMANDS[name]
    parser = ArgumentParser(f"chainrule {name}", description=command.help, allow_abbrev=False)
    parser.set_defaults(command=name)
    _module(name).add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="write for machines, errors included")
    return parser


def _run(name: str, rest: list[str]) -> int:
    from chainrule.cli._failures import failures
    from chainrule.cli._quick import uncollected

    with uncollected(), failures(as_json="--json" in rest):
        parser = make_parser(name)
    options = parser.parse_intermixed_args(rest)
    with failures(as_json=options.json):
        return _module(name).run(options)


def _module(name: str) -> Any:
    return importlib.import_module(f"chainrule.cli.{COMMANDS[name].module}")


def _overview() -> str:
    lines = "\n".join(f"  {name:<16} {command.help}" for name, command in COMMANDS.items())
    return (
        "Usage: chainrule COMMAND …\n\n"
        "Package programs as differentiable components, and use them from the shell.\n\n"
        f"{lines}\n\n"
        "`chainrule COMMAND --help` says more. Exit codes: 0 it worked, 1 the component failed,\n"
        "2 bad input or usage. Results go to standard output, everything else to standard error.\n"
    )


def _unknown(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [*COMMANDS, *_ALIASES], n=1)
    hint = f"Did you mean `chainrule {close[0]}`?" if close else "`chainrule --help` lists them."
    return f"Error: there is no command {name!r}. {hint}\n"
