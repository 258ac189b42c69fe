"""Which commands there are, and how one is found and run.

Each command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`. A command's name has
one word, or two where it belongs to a group: `job list`. Only the module of the command that was asked for is
imported, and the overview does not even import `argparse`: the shell is where a second of imports is felt.
(Measured: typer alone costs as much as pydantic.)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chainrule.cli._streams import reserve_streams, write_text

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(NamedTuple):
    """A command: the module that has it, and one line of help."""

    module: str
    help: str


GROUPS: dict[str, dict[str, Command]] = {
    "Write and check components": {
        "init": Command("_init", "Start a component from a template."),
        "check": Command("_check", "Load a component and list its endpoints, or what is wrong."),
        "inspect": Command("_inspect", "Show the inputs, outputs and endpoints of a component."),
        "schema": Command("_schema", "Print the OpenAPI document, or a part of it."),
        "diff": Command("_diff", "List what a newer component breaks for callers."),
        "record": Command("_record", "Write a call and its result as a regression test."),
        "test": Command("_test", "Run the regression tests of a component."),
        "check-gradients": Command("_check_gradients", "Compare derivatives with differences."),
        "order": Command("_order", "Search a cheap elimination order for a Jacobian."),
    },
    "Call components": {
        "apply": Command("_endpoints", "Compute the outputs for some inputs."),
        "call": Command("_endpoints", "Call any endpoint: apply, jacobian, jvp, vjp, …"),
    },
    "Serve components": {
        "serve": Command("_serve", "Serve components over HTTP."),
        "top": Command("_top", "Watch the load, queue, latency and jobs of a server."),
        "dashboard": Command("_dashboard", "Watch several servers on one page."),
        "job list": Command("_jobs", "List the jobs of a server."),
        "job show": Command("_job_show", "Show one job of a server."),
        "job logs": Command("_logs", "Print the output of a job, or follow it."),
        "job cancel": Command("_cancel", "Cancel a job."),
    },
    "Build images and deploy": {
        "image build": Command("_images_build", "Build a container image of a component."),
        "image run": Command("_images_run", "Serve an image, or have it answer one call."),
        "image list": Command("_images_list", "List the images of components."),
        "image ps": Command("_images_list", "List the containers of components."),
        "image logs": Command("_images_list", "Print the output of a container."),
        "image stop": Command("_images_list", "Stop and remove containers."),
        "deploy slurm": Command("_slurm", "Write a Slurm batch script that serves components."),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

# The flat names of version 0.1, which work for one more release. `logs` was two commands in one.
_OLD_NAMES = {
    **{
        name: f"call {name}"
        for name in (
            "jacobian", "jvp", "vjp", "hvp", "value-and-vjp", "abstract-eval", "intermediates",
            "jacobian-vector-product", "vector-jacobian-product", "hessian-vector-product",
        )
    },
    "openapi-schema": "schema",
    "jobs": "job list",
    "cancel": "job cancel",
    **{name: f"image {name}" for name in ("build", "run", "ps", "stop", "list")},
    "slurm": "deploy slurm",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `chainrule` command; always leaves by `SystemExit`."""
    reserve_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ("-h", "--help", "--version"):
        raise SystemExit(_print_about(given[0]))
    if not given:
        sys.stderr.write(_overview())
        raise SystemExit(2)
    found = find_command(_with_new_name(given))
    if found is None:
        raise SystemExit(_explain_unknown(given))
    raise SystemExit(_run(*found))


def _print_about(option: str) -> int:
    from chainrule import __version__
    from chainrule.cli._failures import failures

    with failures():
        write_text(f"{__version__}\n" if option == "--version" else _overview())
    return 0


def find_command(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The command that the words begin with, and the words behind it; `None` for no command."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            return name, list(words[length:])
    return None


def make_parser(name: str) -> ArgumentParser:
    """The parser of what stands behind the name of a command."""
    from argparse import ArgumentParser

    command = COMMANDS[name]
    parser = ArgumentParser(f"chainrule {name}", description=command.help, allow_abbrev=False)
    parser.set_defaults(command=name)
    _module(name).add_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="Write results and errors as JSON, for programs"
    )
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


def _with_new_name(given: list[str]) -> list[str]:
    """The arguments with an old name replaced, which is said on standard error."""
    old, *rest = given
    if old == "logs":  # of a job, `logs URL JOB`, or of a container
        is_job = any(word.startswith(("http://", "https://")) for word in rest)
        new = "job logs" if is_job else "image logs"
    elif old in _OLD_NAMES:
        new = _OLD_NAMES[old]
    else:
        return given
    if "--json" not in rest:  # what reads JSON expects nothing else
        sys.stderr.write(
            f"`chainrule {old}` is now `chainrule {new}`; the next release removes the old name.\n"
        )
    return [*new.split(), *rest]


def _overview() -> str:
    return (
        "Usage: chainrule COMMAND …\n\n"
        "Package programs as differentiable components, and use them from the shell.\n\n"
        + "\n".join(f"{title}:\n{_listed(commands)}" for title, commands in GROUPS.items())
        + "\n`chainrule COMMAND --help` describes a command. Exit codes: 0 success, 1 the component failed,\n"
        "2 bad input or usage. Results go to standard output, everything else to standard error.\n"
    )


def _listed(commands: dict[str, Command]) -> str:
    return "".join(f"  {name:<16} {command.help}\n" for name, command in commands.items())


def _explain_unknown(given: Sequence[str]) -> int:
    """Say on standard output or error what there is instead; the exit code."""
    group = {name: c for name, c in COMMANDS.items() if name.startswith(f"{given[0]} ")}
    if group and given[1:2] in (["-h"], ["--help"]):
        sys.stdout.write(f"Usage: chainrule {given[0]} COMMAND …\n\n{_listed(group)}")
        return 0
    if group and len(given) == 1:
        sys.stderr.write(f"Usage: chainrule {given[0]} COMMAND …\n\n{_listed(group)}")
        return 2
    import difflib

    name = " ".join(given[:2] if group else given[:1])
    close = difflib.get_close_matches(name, [*COMMANDS, *_OLD_NAMES], n=1)
    hint = f"Did you mean `chainrule {close[0]}`?" if close else "`chainrule --help` lists them."
    sys.stderr.write(f"Error: there is no command {name!r}. {hint}\n")
    return 2
