"""The commands, as typer sees them: options and help here, work in modules that are imported when used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli._options import (
    AllowReference,
    Component,
    Compression,
    InputPath,
    Json,
    OutputFile,
    OutputFormat,
    OutputPath,
    Payload,
    PeerImports,
    Profiling,
    Set,
    Tracing,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="chainrule",
    help="Package programs as differentiable components, and use them from the shell.",
    epilog="Exit codes: 0 it worked, 1 the component failed, 2 bad input or usage.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Command → (endpoint, the peer's name for it, help).
_ENDPOINT_COMMANDS = {
    "apply": ("apply", None, "Compute the outputs for some inputs."),
    "jacobian": ("jacobian", None, "Differentiate outputs with respect to inputs."),
    "jvp": (
        "jacobian_vector_product",
        "jacobian-vector-product",
        "Push a tangent of the inputs forward.",
    ),
    "vjp": (
        "vector_jacobian_product",
        "vector-jacobian-product",
        "Pull a cotangent of the outputs back.",
    ),
    "abstract-eval": ("abstract_eval", None, "Shapes and dtypes of the outputs."),
}


def _add_endpoint_command(command: str, endpoint: str, alias: str | None, help: str) -> None:
    def run(
        component: Component,
        payload: Payload = None,
        values: Set = None,
        input_path: InputPath = Path(),
        output_path: OutputPath = Path(),
        output_format: OutputFormat = "json",
        compression: Compression = None,
        output_file: OutputFile = None,
        profiling: Profiling = False,
        tracing: Tracing = False,
        allow_reference: AllowReference = None,
        peer_imports: PeerImports = False,
        json: Json = False,
    ) -> None:
        from chainrule.cli._endpoints import call_endpoint

        settings = {
            "input_path": input_path,
            "output_path": output_path,
            "output_format": output_format,
            "compression": compression,
            "profiling": profiling,
            "tracing": tracing,
            "allow_references": frozenset(allow_reference or ()),
        }
        call_endpoint(
            component,
            endpoint,
            payload,
            values or [],
            settings,
            output_file=output_file,
            redirect_peer=not peer_imports,
            errors_as_json=json,
        )

    run.__doc__ = help
    app.command(command, help=help)(run)
    if alias is not None:
        app.command(alias, help=help, hidden=True)(run)


@app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(help="Where to write; created if needed.")] = Path(),
    template: Annotated[
        str, typer.Option("--template", "-t", help="function, module, jax, torch or command.")
    ] = "function",
    name: Annotated[
        str | None, typer.Option(help="Name of the component; the folder's name by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Start a component from a template."""
    from chainrule.cli._init import init

    init(folder, template, name, as_json=json)


@app.command("check")
def check_command(
    component: Component, json: Json = False, peer_imports: PeerImports = False
) -> None:
    """Load a component; say what it can do or what is wrong."""
    from chainrule.cli._check import check

    check(component, as_json=json, redirect_peer=not peer_imports)


for _command, (_endpoint, _alias, _help) in _ENDPOINT_COMMANDS.items():
    _add_endpoint_command(_command, _endpoint, _alias, _help)


@app.command("inspect")
def inspect_command(component: Component, json: Json = False) -> None:
    """Show inputs, outputs and endpoints of a component."""
    from chainrule.cli._inspect import inspect

    inspect(component, as_json=json)


@app.command("schema")
def schema_command(
    component: Component,
    part: Annotated[str, typer.Option(help="openapi, inputs or outputs.")] = "openapi",
    json: Json = False,
) -> None:
    """Print the OpenAPI document, or a part of it."""
    from chainrule.cli._schema import schema

    schema(component, part, errors_as_json=json)


app.command("openapi-schema", hidden=True, help="The peer's name of `schema`.")(schema_command)


@app.command("diff")
def diff_command(
    old: Annotated[str, typer.Argument(help="A component, or its OpenAPI document (.json).")],
    new: Annotated[str, typer.Argument(help="Another one.")],
    json: Json = False,
) -> None:
    """Say what a newer component breaks for callers."""
    from chainrule.cli._diff import diff

    diff(old, new, as_json=json)


@app.command("check-gradients")
def check_gradients_command(
    component: Component,
    payload: Payload = None,
    values: Set = None,
    input_paths: Annotated[
        list[str] | None, typer.Option(help="Only these inputs; repeat for more.")
    ] = None,
    output_paths: Annotated[
        list[str] | None, typer.Option(help="Only these outputs; repeat for more.")
    ] = None,
    endpoints: Annotated[
        list[str] | None, typer.Option(help="Only these endpoints; repeat for more.")
    ] = None,
    eps: Annotated[float | None, typer.Option(help="Step of the differences.")] = None,
    rtol: Annotated[float, typer.Option(help="Allowed relative error.")] = 0.1,
    max_evals: Annotated[int, typer.Option(help="Evaluations to spend.")] = 1000,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampled elements.")] = None,
    input_path: InputPath = Path(),
    json: Json = False,
) -> None:
    """Check derivatives against finite differences."""
    from chainrule.cli._testing import check_gradients

    options = {
        "input_paths": input_paths,
        "output_paths": output_paths,
        "endpoints": endpoints,
        "eps": eps,
        "rtol": rtol,
        "max_evals": max_evals,
        "seed": seed,
    }
    check_gradients(component, payload, values or [], options, input_path, as_json=json)


@app.command("test")
def regression_command(
    component: Component,
    cases: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Test cases; `test_cases/test_*.json` beside the component by default."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run the regression tests of a component."""
    from chainrule.cli._testing import run_tests

    run_tests(component, cases or [], as_json=json)


@app.command("record")
def record_command(
    component: Component,
    endpoint: Annotated[str, typer.Argument(help="The endpoint to call, for example apply.")],
    payload: Payload = None,
    values: Set = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The test case to write.")
    ] = None,
    json: Json = False,
) -> None:
    """Keep a call and its result as a regression test."""
    from chainrule.cli._testing import record

    record(component, endpoint, payload, values or [], output, as_json=json)


@app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_command(context: typer.Context) -> None:
    """Serve components over HTTP. Options are those of `chainrule.serve`."""
    from chainrule.cli._serve import serve

    serve(context.args)


def main() -> None:
    """Entry point of the `chainrule` command."""
    app()
