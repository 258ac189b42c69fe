"""`chainrule-tesseract-runtime`: the ancestor's command line on our components.

The result, and nothing else, goes to standard output. Exit codes: 0 success (a regression test that fails
is a success too), 2 the caller's mistake, 1 everything else.

A setting comes from its option, else from `TESSERACT_RUNTIME_<NAME>`, else from `TESSERACT_<NAME>`. Options
of a command have variables with the command's name in them, such as `TESSERACT_RUNTIME_SERVE_PORT`.

A call leaves a folder of logs, laid out as the ancestor does:

    logs/tesseract.log    what was printed, with profile and trace where they are asked for
    logs/metrics.csv      metrics, a header at least
    logs/artifacts/       files that the component keeps
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chainrule._codec import BinrefWriter, encode_body
from chainrule._errors import ChainruleError, InputError, missing_dependency
from chainrule.compat.tesseract_core._failures import pydantic_errors
from chainrule.compat.tesseract_core.runtime.config import RuntimeConfig, from_environment
from chainrule.runtime import LocalComponent, load_component
from chainrule.runtime.internal import Run, keep_output

ENDPOINT_COMMANDS = {
    "apply": "apply",
    "jacobian": "jacobian",
    "jacobian-vector-product": "jacobian_vector_product",
    "vector-jacobian-product": "vector_jacobian_product",
    "abstract-eval": "abstract_eval",
}
_HELP = {
    **{name: f"Call the endpoint {name}." for name in ENDPOINT_COMMANDS},
    "health": "Print that the component is healthy.",
    "test": "Run one regression test and print its outcome.",
    "openapi-schema": "Print the OpenAPI document.",
    "check": "Load the component, or print what is wrong with it.",
    "check-gradients": "Compare derivatives with finite differences.",
    "serve": "Serve the component over HTTP.",
}
_SETTINGS = [name for name in RuntimeConfig.model_fields if name != "api_path"]
_CHECK = "TESSERACT_RUNTIME_CHECK_GRADIENTS_"
_OBSERVATIONS = ("chainrule.runtime.profile", "chainrule.runtime.trace")


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
    for name, text in _HELP.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name in ENDPOINT_COMMANDS or name in ("test", "check-gradients"):
            command.add_argument("payload", help="JSON, or @FILE")
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
    # The ancestor passes this itself: a pipe that the starting process holds open.
    parser.add_argument("--parent-pipe-fd", type=int, help=SUPPRESS)
    # The ancestor has no token: every caller may use its servers.
    parser.add_argument(
        "--token-file",
        type=Path,
        default=os.environ.get("TESSERACT_RUNTIME_SERVE_TOKEN_FILE"),
        help="Callers must send the token in this file; also TESSERACT_RUNTIME_SERVE_TOKEN_FILE",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=os.environ.get("TESSERACT_RUNTIME_SERVE_INSECURE") == "1",
        help="Listen beyond loopback without a token; also TESSERACT_RUNTIME_SERVE_INSECURE=1",
    )


def _add_check_options(parser: ArgumentParser) -> None:
    for name in ("input-paths", "output-paths", "endpoints"):
        _add_check_option(
            parser, name, action="append", help="Check only this one; repeat for more"
        )
    _add_check_option(parser, "eps", type=float, default=1e-4, help="Step of the differences")
    _add_check_option(
        parser,
        "eps-for",
        type=_path_and_step,
        action="append",
        metavar="PATH=VALUE",
        help="Step of one input; repeat for more",
    )
    _add_check_option(parser, "rtol", type=float, default=0.1, help="Allow this relative error")
    _add_check_option(
        parser,
        "max-evals",
        type=int,
        default=1000,
        help="Evaluate the component at most this often",
    )
    _add_check_option(
        parser, "max-output-samples", type=int, help="Compare a sample of this many output elements"
    )
    _add_check_option(
        parser, "max-failures", type=int, default=10, help="Show at most this many failures"
    )
    _add_check_option(parser, "seed", type=int, help="Seed of the sample")
    shown = os.environ.get(f"{_CHECK}SHOW_PROGRESS", "1").lower() not in ("0", "false", "no", "off")
    parser.add_argument("--show-progress", action="store_true", default=shown)
    parser.add_argument("--no-show-progress", dest="show_progress", action="store_false")


def _add_check_option(parser: ArgumentParser, name: str, **facts: Any) -> None:
    """An option and its variable; the variable of an option that can be repeated has several words."""
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; always leaves by `SystemExit`."""
    with result_descriptor() as stdout:
        options = make_parser().parse_args(arguments)
        raise SystemExit(_run(options, stdout))


def _run(options: Namespace, stdout: int) -> int:
    try:
        settings = read_settings(options)
        return _COMMANDS.get(options.command, _endpoint)(options, settings, stdout)
    except UsageError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except (InputError, _RefusedError) as error:
        place = "Invalid value for payload: " if hasattr(options, "payload") else ""
        sys.stderr.write(f"Error: {place}{error}\n")
        return 2
    except ChainruleError as error:
        traceback.print_exception(error)
        return error.exit_code
    except (ValidationError, json.JSONDecodeError) as error:
        traceback.print_exception(error)
        return 1


class _RefusedError(Exception):
    """The component refuses the payload."""


def _load(settings: RuntimeConfig, *, describe: bool = False) -> LocalComponent:
    config = settings.for_component(trusts_caller=True)
    is_building = os.environ.get("_TESSERACT_IS_BUILDING") == "1"
    if describe or is_building:
        config = config.replace(require_files=False)
    return load_component(str(settings.api_path), config=config)


def _endpoint(options: Namespace, settings: RuntimeConfig, stdout: int) -> int:
    component = _FlatRuns(_load(settings))
    payload = read_payload(options.payload)
    endpoint = ENDPOINT_COMMANDS[options.command]
    try:
        with pydantic_errors(endpoint, payload), logged(settings):
            result = component.call(endpoint, payload)
    except ValidationError as error:
        raise _RefusedError(str(error)) from error
    _write(_encode(result, settings), settings, stdout)
    return 0


class _FlatRuns:
    """A component whose runs have no folder of their own: files go to the output path itself."""

    def __init__(self, component: LocalComponent) -> None:
        self._component = component
        self.available_endpoints = component.available_endpoints
        self.output_schema = component.output_schema

    def call(self, endpoint: str, payload: Mapping[str, Any]) -> Any:
        run = Run(self._component.config, is_flat=True)
        return self._component.call(endpoint, payload, run=run)


def _encode(result: Any, settings: RuntimeConfig) -> Iterable[bytes | memoryview]:
    is_binref = settings.output_format == "json+binref"
    with BinrefWriter(settings.output_path) if is_binref else nullcontext() as writer:
        return encode_body(
            result, format=settings.output_format, compression=settings.compression, writer=writer
        )


def _write(pieces: Iterable[bytes | memoryview], settings: RuntimeConfig, stdout: int) -> None:
    if settings.output_file:
        file = settings.output_path / settings.output_file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(pieces))
        return
    with open(stdout, "wb", closefd=False) as stream:
        stream.writelines(pieces)


def _write_json(content: Any, settings: RuntimeConfig, stdout: int) -> int:
    text = json.dumps(content, separators=(",", ":"))
    _write([text.encode()], settings, stdout)
    return 0


def _health(options: Namespace, settings: RuntimeConfig, stdout: int) -> int:
    component = _load(settings)
    with logged(settings):
        content = component.health()
    return _write_json(content, settings, stdout)


def _openapi_schema(options: Namespace, settings: RuntimeConfig, stdout: int) -> int:
    component = _load(settings, describe=True)
    with logged(settings):
        content = component.openapi_schema
    return _write_json(content, settings, stdout)


def _check(options: Namespace, settings: RuntimeConfig, stdout: int) -> int:
    component = _load(settings)
    sys.stderr.write(
        f"{component.name} is a component: {', '.join(component.available_endpoints)}\n"
    )
    return 0


def _test(options: Namespace, settings: RuntimeConfig, stdout: int) -> int:
    from chainrule.compat.tesseract_core.runtime.testing.regression import TestSpec, outcome
    from chainrule.runtime.testing import run_test

    payload = read_payload(options.payload)
    try:
        spec = TestSpec.model_validate(payload)
    except ValidationError as error:
        raise _RefusedError(str(error)) from error
    component = _FlatRuns(_load(settings))
    with logged(settings):
        result = run_test(component, spec)
    return _write_json(outcome(result).model_dump(), settings, stdout)


def _check_gradients(options: Namespace, settings: RuntimeConfig, stdout: int) -> int:
    from chainrule.compat.tesseract_core.runtime.testing.finite_differences import check_gradients

    payload = read_payload(options.payload)
    with tempfile.TemporaryDirectory() as folder:  # for files of the many runs
        component = _load(settings.model_copy(update={"output_path": Path(folder)}))
        try:
            results = list(
                check_gradients(
                    component,
                    payload,
                    input_paths=options.input_paths,
                    output_paths=options.output_paths,
                    endpoints=options.endpoints,
                    eps=_steps(component, payload, options),
                    rtol=options.rtol,
                    max_evals=options.max_evals,
                    max_output_samples=options.max_output_samples,
                    seed=options.seed,
                    show_progress=options.show_progress,
                )
            )
        except ValueError as error:
            traceback.print_exception(error)
            return 1
    failed = False
    for endpoint, failures, count in results:
        failed = failed or bool(failures)
        verdict = "failed" if failures else "passed"
        lines = [
            f"Gradient check for {endpoint} {verdict} ({len(failures)} failures / {count} checks)"
        ]
        lines += [f"  {failure}" for failure in failures[: options.max_failures]]
        sys.stderr.write("\n".join(lines) + "\n")
    return int(failed)


def _steps(component: LocalComponent, payload: Any, options: Namespace) -> float | dict[str, float]:
    """The step of the differences; where some inputs have their own, one for each."""
    from chainrule.runtime.internal import Subject

    if not options.eps_for:
        return float(options.eps)
    subject = Subject(component, payload, options.input_paths, options.output_paths)
    return {**dict.fromkeys(subject.input_paths, options.eps), **dict(options.eps_for)}


def _serve(options: Namespace, settings: RuntimeConfig, stdout: int) -> int:
    from chainrule.serve import serve

    if options.parent_pipe_fd is not None:
        watcher = threading.Thread(
            target=_end_with_parent, args=(options.parent_pipe_fd,), daemon=True
        )
        watcher.start()
    serve(
        str(settings.api_path),
        config=settings.for_component(trusts_caller=False).replace(keep_output=True),
        host=options.host,
        port=options.port,
        workers=options.num_workers,
        debug=settings.debug,
        token_file=options.token_file,
        insecure=options.insecure,
        on_ready=_announce,
    )
    return 0


def _end_with_parent(descriptor: int) -> None:
    """Stop this server when every other end of a pipe is closed."""
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _announce(url: str) -> None:
    sys.stderr.write(f"Serving at {url}\n")
    sys.stderr.flush()


_COMMANDS = {
    "health": _health,
    "openapi-schema": _openapi_schema,
    "check": _check,
    "test": _test,
    "check-gradients": _check_gradients,
    "serve": _serve,
}


def read_payload(text: str) -> Any:
    """The body of a request: JSON in the argument itself, or in the file or address after `@`.

    Raises:
        InputError: the file cannot be read.
        json.JSONDecodeError: it is not JSON.
    """
    return json.loads(_read(text[1:]) if text.startswith("@") else text)


def _read(place: str) -> str | bytes:
    try:
        return _read_address(place) if "://" in place else Path(place).read_bytes()
    except OSError as error:
        raise InputError(
            f"The payload file {place!r} cannot be read: {error.strerror or error}.",
            code="payload_unreadable",
        ) from error


def _read_address(address: str) -> bytes:
    try:
        import fsspec
    except ImportError as error:
        raise missing_dependency("Payloads at an address need", "fsspec", "fsspec") from error
    with fsspec.open(address, "rb") as stream:
        return stream.read()


@contextmanager
def result_descriptor() -> Iterator[int]:
    """Send descriptor 1 to standard error, and give a descriptor of the real standard output.

    Descriptors are what C libraries and child processes write to. `sys.stdout` and `sys.stderr` are opened
    anew on them, because in test runners and notebooks they lead elsewhere.
    """
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with (
            open(1, "w", buffering=1, closefd=False) as stdout,
            open(2, "w", buffering=1, closefd=False) as stderr,
            redirect_stdout(stdout),
            redirect_stderr(stderr),
        ):
            yield real
    finally:
        os.dup2(real, 1)
        os.close(real)


@contextmanager
def logged(settings: RuntimeConfig) -> Iterator[None]:
    """Keep what is printed in the body. A call that is refused leaves no folder behind."""
    logs = settings.output_path / "logs"
    was_there = logs.exists()
    try:
        with keep_output(settings.output_path), _observations_shown():
            yield
    except InputError:
        if not was_there:
            shutil.rmtree(logs)
        raise


@contextmanager
def _observations_shown() -> Iterator[None]:
    """Print profiles and traces, which are log records, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    loggers = [logging.getLogger(name) for name in _OBSERVATIONS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
