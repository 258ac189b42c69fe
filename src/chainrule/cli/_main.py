"""Which commands there are, and how one is found and run.

A command's name has one word, or two where it belongs to a group: `job list`. Each has a function that adds
its arguments to a parser and sets `handler` to the function that runs it and returns the exit code. Only the
module of the command that was asked for is imported, and the overview does not even import `argparse`, so
that the command line starts quickly. (typer alone takes as long to import as pydantic.)
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from chainrule._errors import InputError
from chainrule.cli._output import failures, reserve_streams, strong, write_styled, write_text

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser


class Command(NamedTuple):
    """A command: the function that adds its arguments (`module:name`), one line of help, and an example."""

    arguments: str
    help: str
    example: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments to the parser, and set `handler`."""
        module, _, function = self.arguments.partition(":")
        getattr(importlib.import_module(f"chainrule.cli.{module}"), function)(parser)


GROUPS: dict[str, dict[str, Command]] = {
    "Write and check components": {
        "init": Command(
            "_init:add_arguments",
            "Start a component from a template.",
            "chainrule init scale --template jax",
        ),
        "check": Command(
            "_describe:add_check_arguments",
            "Load a component and list its endpoints, or what is wrong.",
            "chainrule check scale",
        ),
        "inspect": Command(
            "_describe:add_inspect_arguments",
            "Show the inputs, outputs and endpoints of a component.",
            "chainrule inspect http://localhost:8000",
        ),
        "schema": Command(
            "_describe:add_schema_arguments",
            "Print the OpenAPI document, or a part of it.",
            "chainrule schema scale --part inputs",
        ),
        "diff": Command(
            "_describe:add_diff_arguments",
            "List what a newer component breaks for callers.",
            "chainrule diff http://localhost:8000 scale",
        ),
        "record": Command(
            "_testing:add_record_arguments",
            "Write a call and its result as a regression test.",
            "chainrule record scale apply --set x='[1.0, 2.0]'",
        ),
        "test": Command(
            "_testing:add_test_arguments",
            "Run the regression tests of a component.",
            "chainrule test scale",
        ),
        "check-gradients": Command(
            "_testing:add_gradient_arguments",
            "Compare derivatives with finite differences.",
            "chainrule check-gradients scale --set x='[1.0, 2.0]'",
        ),
        "order": Command(
            "_order:add_arguments",
            "Search for a cheap elimination order of a Jacobian.",
            "chainrule order model.py:residual '[[1.0, 2.0]]' --budget 10",
        ),
        "completion": Command(
            "_completion:add_arguments",
            "Print a script by which a shell completes options.",
            "chainrule completion bash",
        ),
    },
    "Call components": {
        "apply": Command(
            "_call:add_apply_arguments",
            "Compute the outputs for some inputs.",
            "chainrule apply scale --set x='[1.0, 2.0]' --set scale=2",
        ),
        "call": Command(
            "_call:add_call_arguments",
            "Call any endpoint: apply, jacobian, jvp, vjp, …",
            "chainrule call vjp http://localhost:8000 @payload.json",
        ),
    },
    "Serve components": {
        "serve": Command(
            "_serve:add_arguments",
            "Serve components over HTTP.",
            "chainrule serve scale --open --reload",
        ),
        "mcp": Command(
            "_mcp:add_arguments",
            "Offer components as tools to language models (MCP, stdio).",
            "chainrule mcp scale",
        ),
        "top": Command(
            "_watch:add_top_arguments",
            "Watch the load, queue, latency and jobs of a server.",
            "chainrule top http://localhost:8000",
        ),
        "dashboard": Command(
            "_watch:add_dashboard_arguments",
            "Watch several servers on one page.",
            "chainrule dashboard http://localhost:8000 http://localhost:8001",
        ),
        "job list": Command(
            "_jobs:add_list_arguments",
            "List the jobs of a server.",
            "chainrule job list http://localhost:8000 --state running",
        ),
        "job show": Command(
            "_jobs:add_show_arguments",
            "Show one job of a server.",
            "chainrule job show http://localhost:8000 JOB",
        ),
        "job logs": Command(
            "_jobs:add_logs_arguments",
            "Print the output of a job, or follow it.",
            "chainrule job logs http://localhost:8000 JOB --follow",
        ),
        "job cancel": Command(
            "_jobs:add_cancel_arguments",
            "Cancel a job.",
            "chainrule job cancel http://localhost:8000 JOB",
        ),
    },
    "Build images and deploy": {
        "image build": Command(
            "_images:add_build_arguments",
            "Build a container image of a component.",
            "chainrule image build scale --tag scale:1.0",
        ),
        "image run": Command(
            "_images:add_run_arguments",
            "Serve an image, or make one call of it.",
            'chainrule image run scale:1.0 apply \'{"inputs": {"x": [1.0, 2.0]}}\'',
        ),
        "image push": Command(
            "_images:add_push_arguments",
            "Push an image, and describe it in the registry's catalogue.",
            "chainrule image push registry.example/team/scale:1.0.0 --owner simulation",
        ),
        "search": Command(
            "_images:add_search_arguments",
            "Find components in the catalogue of a registry.",
            "chainrule search registry.example/team --input Float64 --endpoint jacobian",
        ),
        "image list": Command(
            "_images:add_list_arguments", "List the images of components.", "chainrule image list"
        ),
        "image ps": Command(
            "_images:add_ps_arguments", "List the containers of components.", "chainrule image ps"
        ),
        "image logs": Command(
            "_images:add_logs_arguments",
            "Print the output of a container.",
            "chainrule image logs CONTAINER --tail 20",
        ),
        "image stop": Command(
            "_images:add_stop_arguments",
            "Stop and remove containers.",
            "chainrule image stop --all",
        ),
        "deploy slurm": Command(
            "_deploy:add_slurm_arguments",
            "Write a Slurm batch script that serves components.",
            "chainrule deploy slurm scale --servers 4 --time 02:00:00 --output job.sh",
        ),
        "deploy kubernetes": Command(
            "_deploy:add_kubernetes_arguments",
            "Write Kubernetes manifests that serve an image.",
            "chainrule deploy kubernetes registry.example/scale:1.0 -o scale.yaml",
        ),
        "deploy alerts": Command(
            "_deploy:add_alert_arguments",
            "Write alert rules for Prometheus.",
            "chainrule deploy alerts > chainrule-alerts.yaml",
        ),
        "deploy grafana": Command(
            "_deploy:add_grafana_arguments",
            "Write a dashboard for Grafana.",
            "chainrule deploy grafana > chainrule-dashboard.json",
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

# The names that commands had before they were grouped; they work until the next release. `logs` was two
# commands in one.
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
        sys.stderr.write(_overview(2))
        raise SystemExit(2)
    found = find_command(_with_new_name(given))
    if found is None:
        raise SystemExit(_explain_unknown(given))
    raise SystemExit(_run(*found))


def _print_about(option: str) -> int:
    from chainrule import __version__

    with failures():
        if option == "--version":
            write_text(f"{__version__}\n")
        else:
            write_styled(_overview(1))
    return 0


def find_command(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The command that the words begin with, and the words after it; `None` without a command."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            return name, list(words[length:])
    return None


def make_parser(name: str) -> ArgumentParser:
    """The parser of the arguments that follow the name of a command."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    class Formatter(RawDescriptionHelpFormatter):
        """Headings in bold on a terminal, and a usage without the list of all options."""

        def start_section(self, heading: str | None) -> None:
            named = {"positional arguments": "arguments"}.get(heading or "", heading)
            super().start_section(named and strong(named[0].upper() + named[1:], 1))

        def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
            forms = {"?": "[{}]", "*": "[{} …]", "+": "{} [{} …]"}
            words = [
                forms.get(action.nargs, "{}").format(
                    *[action.metavar or f"{{{','.join(action.choices)}}}"] * 2
                )
                for action in actions
                if not action.option_strings
            ]
            usage = " ".join(["%(prog)s [OPTIONS]", *words])
            super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)

        def _get_help_string(self, action: Action) -> str:
            return help_of(action)

    class Parser(ArgumentParser):
        """Reports a wrong usage as every other mistake of the user is reported."""

        def error(self, message: str) -> NoReturn:
            raise _bad_usage(self, f"{message[0].upper()}{message[1:]}.")

    command = COMMANDS[name]
    parser = Parser(
        f"chainrule {name}",
        description=command.help,
        epilog=f"{strong('Example', 1)}:\n  {command.example}",
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("--help", "-h", action="help", help="Show this help")
    command.add_arguments(parser)
    common = parser.add_argument_group("output and errors")
    common.add_argument(
        "--json", action="store_true", help="Write results and errors as JSON, for programs"
    )
    # `serve` has an option of this name with a wider meaning.
    if parser.get_default("debug") is None:
        common.add_argument(
            "--debug", action="store_true", help="Write the whole traceback of an error"
        )
    return parser


def help_of(action: Action) -> str:
    """The help of an option, with its default where that is a value and the help does not say it."""
    from argparse import SUPPRESS

    text, default = (action.help or "").removesuffix("."), action.default
    is_value = isinstance(default, (int, float, str)) and not isinstance(default, bool)
    if not is_value or default in ("", SUPPRESS) or "default" in text or not action.option_strings:
        return text
    return (
        f"{text} (default: {default:g})"
        if isinstance(default, float)
        else f"{text} (default: {default})"
    )


def _run(name: str, rest: list[str]) -> int:
    with failures(as_json="--json" in rest, debug="--debug" in rest):
        parser = make_parser(name)
        if "-h" in rest or "--help" in rest:
            write_styled(parser.format_help())
            return 0
        options, unknown = parser.parse_known_intermixed_args(rest)
        options.words = rest
        if unknown:
            raise _bad_usage(parser, _about_unknown(unknown, parser))
    with failures(as_json=options.json, debug=options.debug):
        return options.handler(options)


def flags_of(parser: ArgumentParser) -> list[str]:
    """The long options that the help of a command names."""
    return sorted(set(_FLAG.findall(parser.format_help())))


def _about_unknown(words: Sequence[str], parser: ArgumentParser) -> str:
    """What is said of words that a command does not take."""
    from chainrule._describe import did_you_mean

    option = words[0].partition("=")[0]
    if option.startswith("-"):
        return f"There is no option {option!r}.{did_you_mean(option, flags_of(parser))}"
    return f"There are more arguments than this command takes: {' '.join(words)}."


def _bad_usage(parser: ArgumentParser, problem: str) -> InputError:
    return InputError(
        f"{problem}\n{parser.format_usage().rstrip()}\n`{parser.prog} --help` describes the options.",
        code="bad_option",
    )


def _with_new_name(given: list[str]) -> list[str]:
    """The arguments with an old name replaced; a line on standard error names the new one."""
    old, *rest = given
    if old == "logs":  # of a job, `logs URL JOB`, or of a container
        is_job = any(word.startswith(("http://", "https://")) for word in rest)
        new = "job logs" if is_job else "image logs"
    elif old in _OLD_NAMES:
        new = _OLD_NAMES[old]
    else:
        return given
    if "--json" not in rest:  # a program that reads JSON expects nothing else
        sys.stderr.write(
            f"`chainrule {old}` is now `chainrule {new}`; the next release removes the old name.\n"
        )
    return [*new.split(), *rest]


def _overview(descriptor: int) -> str:
    """All commands, for the stream that a descriptor leads to."""
    groups = (
        f"{strong(f'{title}:', descriptor)}\n{_listed(commands)}"
        for title, commands in GROUPS.items()
    )
    return (
        "Usage: chainrule COMMAND …\n\n"
        "Package programs as differentiable components, and use them from the shell.\n\n"
        + "\n".join(groups)
        + "\n`chainrule COMMAND --help` describes a command and its options.\n"
        "Exit codes: 0 success, 1 the component failed, 2 bad input or usage.\n"
        "Results go to standard output, everything else to standard error.\n"
    )


def _listed(commands: dict[str, Command]) -> str:
    return "".join(f"  {name:<17} {command.help}\n" for name, command in commands.items())


def _explain_unknown(given: Sequence[str]) -> int:
    """Write which commands there are, and return the exit code."""
    group = {name: c for name, c in COMMANDS.items() if name.startswith(f"{given[0]} ")}
    if group and given[1:2] in (["-h"], ["--help"]):
        with failures():
            write_text(f"Usage: chainrule {given[0]} COMMAND …\n\n{_listed(group)}")
        return 0
    if group and len(given) == 1:
        sys.stderr.write(f"Usage: chainrule {given[0]} COMMAND …\n\n{_listed(group)}")
        return 2
    if given[0].startswith("-"):
        sys.stderr.write(
            f"{strong('Error:', 2, 'red')} options follow the command: `chainrule COMMAND … {given[0]}`. "
            "`chainrule --help` lists the commands.\n"
        )
        return 2
    from chainrule._describe import closest

    name = " ".join(given[:2] if group else given[:1])
    close = closest(name, [*COMMANDS, *_OLD_NAMES])
    meant = _OLD_NAMES.get(close or "", close)  # old names work, but are not shown
    hint = f"Did you mean `chainrule {meant}`?" if meant else "`chainrule --help` lists them."
    sys.stderr.write(f"{strong('Error:', 2, 'red')} there is no command {name!r}. {hint}\n")
    return 2
