"""`chainrule apply` and `chainrule call ENDPOINT`: one call of an endpoint."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from chainrule._codec import BinrefWriter, encode_body
from chainrule._describe import closest, did_you_mean
from chainrule._endpoints import ENDPOINTS
from chainrule._errors import InputError, StorageError
from chainrule._files import write_whole
from chainrule._results import Result
from chainrule.cli._debugging import accept_debugger, add_debug_port
from chainrule.cli._output import ResultStream, make_table, result_stream
from chainrule.cli._payload import add_payload, given_payload, inputs_explained
from chainrule.cli._sources import (
    add_component,
    add_derive_hvp,
    add_folders,
    check_source,
    is_url,
    open_component,
    open_served,
)
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import Run

_COMMANDS = {kind.command: name for name, kind in ENDPOINTS.items()}
_NAMES = (*_COMMANDS, *(name.replace("_", "-") for name in ENDPOINTS))


def endpoint_name(name: str) -> str:
    """The endpoint of a short name (`vjp`), or of its own name with dashes or underscores.

    Raises:
        InputError: there is no such endpoint (`endpoint_missing`).
    """
    endpoint = _COMMANDS.get(name, name.replace("-", "_"))
    if endpoint not in (*ENDPOINTS, "health"):
        raise InputError(
            f"There is no endpoint {name!r}.{did_you_mean(name, _NAMES)} The endpoints are "
            f"{', '.join(_COMMANDS)}.",
            code="endpoint_missing",
        )
    return endpoint


def add_apply_arguments(parser: ArgumentParser) -> None:
    """The arguments of `apply`, which is short for `call apply`."""
    parser.set_defaults(endpoint="apply")
    _add_arguments(parser)


def add_call_arguments(parser: ArgumentParser) -> None:
    """The endpoint, and the arguments of one call."""
    parser.add_argument("endpoint", metavar="ENDPOINT", help=f"One of {', '.join(_COMMANDS)}")
    _add_arguments(parser)


def _add_arguments(parser: ArgumentParser) -> None:
    """Component, payload, and how the result is written."""
    add_component(parser)
    add_payload(parser)
    add_folders(parser)
    written = parser.add_argument_group("how the result is written")
    written.add_argument(
        "--output-format",
        "-f",
        metavar="FORMAT",
        help="Write arrays as json, json+base64 or json+binref (default: a table on a terminal, else json)",
    )
    written.add_argument(
        "--compression",
        metavar="NAME",
        help="Compress arrays in base64 and binref; lz4 (default: no compression)",
    )
    written.add_argument(
        "--output-file",
        metavar="FILE",
        help="Write the result to this file in the output path (default: standard output)",
    )
    running = parser.add_argument_group("how the component is run")
    running.add_argument("--profiling", action="store_true", help="Log a profile of the call")
    running.add_argument(
        "--tracing", action="store_true", help="Log payload and result, abbreviated"
    )
    add_derive_hvp(running)
    running.add_argument(
        "--allow-reference",
        action="append",
        default=[],
        metavar="KIND",
        help="Open component references of this kind: api_path, url or image; repeat for more "
        "(default: none)",
    )
    add_debug_port(running, "the call begins when one has attached")
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    """Call the endpoint and write its result to standard output, or to a file in the output path."""
    with result_stream() as stdout:
        if options.debug_port is not None:
            accept_debugger(options.debug_port, wait=True)
        _check_endpoint(options)
        if not is_url(options.component):
            check_source(options.component)
        config = _config(options)
        payload = given_payload(options, config)
        with inputs_explained(options, payload):
            if _is_for_people(options, stdout):
                stdout.show(_call(options, config, payload, _table))
                return 0
            pieces = _encode(_call(options, config, payload), config)
        if options.output_file is None:
            stdout.write([*pieces, b"\n"])
        else:
            _write_file(config.output_path, options.output_file, pieces)
    return 0


def _check_endpoint(options: Namespace) -> None:
    """Refuse an endpoint that does not exist, or that stands behind the component."""
    try:
        endpoint_name(options.endpoint)
    except InputError as error:
        meant = closest(options.component, _NAMES)
        if meant is None or Path(options.component).exists():
            raise
        raise InputError(
            f"The endpoint comes first: `chainrule call {meant} {options.endpoint}`.",
            code=error.code,
        ) from None


def _is_for_people(options: Namespace, stdout: ResultStream) -> bool:
    """Whether the result is read on a terminal, and nothing says that a program wants it."""
    is_asked_for = options.json or options.output_format or options.output_file
    return stdout.is_terminal and not is_asked_for


def _call(
    options: Namespace,
    config: ComponentConfig,
    payload: dict[str, Any],
    use: Callable[[Any, Any], Any] = lambda answer, component: answer,
) -> Any:
    """What `use` makes of the answer and of the component that gave it, which may be closed afterwards."""
    endpoint = endpoint_name(options.endpoint)
    if is_url(options.component):
        with open_served(options) as served:
            return use(served.transport.call(endpoint, payload), served)
    component = open_component(options, config)
    run = Run(component.config, is_flat=True)
    return use(component.call(endpoint, payload, run=run), component)


def _table(answer: Any, component: Any) -> Any:
    """A line for each leaf of the answer."""
    if not isinstance(answer, dict):
        return str(answer)
    lines = Result.of(answer, component.output_units).lines()
    rows = [
        (line.path, line.type, line.value if isinstance(line.value, str) else line.text, line.units)
        for line in lines
    ]
    used = 4 if any(line.units for line in lines) else 3
    return make_table("", ("", "type", "value", "units")[:used], [row[:used] for row in rows])


def _config(options: Namespace) -> ComponentConfig:
    if options.profiling or options.tracing:
        import logging

        logging.basicConfig(level=logging.INFO, format="%(message)s")
    return ComponentConfig(
        input_path=options.input_path,
        output_path=options.output_path,
        output_format=options.output_format or "json",
        compression=options.compression,
        profiling=options.profiling,
        tracing=options.tracing,
        derive_hvp=options.derive_hvp,
        allow_references=frozenset(options.allow_reference),
    )


def _encode(result: Any, config: ComponentConfig) -> list[bytes | memoryview]:
    is_binref = config.output_format == "json+binref"
    with BinrefWriter(config.output_path) if is_binref else nullcontext() as writer:
        return encode_body(
            result, format=config.output_format, compression=config.compression, writer=writer
        )


def _write_file(folder: Path, name: str, pieces: list[bytes | memoryview]) -> None:
    target = (folder / name).resolve()
    if not target.is_relative_to(folder):
        raise InputError(
            f"--output-file has to stay inside the output path; found {name!r}.",
            code="path_not_granted",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, pieces)
    except OSError as error:
        raise StorageError(f"Cannot write {target}: {error.strerror}.") from error
