"""`chainrule-tesseract-runtime`: the ancestor's command line on our components.

The result, and nothing else, goes to standard output. Exit codes: 0 it worked (a regression test that fails
has worked too), 2 the caller's mistake, 1 everything else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chainrule._codec import BinrefWriter, encode_body
from chainrule._errors import ChainruleError, InputError
from chainrule.compat.tesseract_core._failures import pydantic_errors
from chainrule.compat.tesseract_core.runtime._arguments import (
    ENDPOINT_COMMANDS,
    UsageError,
    make_parser,
    read_settings,
)
from chainrule.compat.tesseract_core.runtime._logs import logged
from chainrule.compat.tesseract_core.runtime._payloads import read_payload
from chainrule.compat.tesseract_core.runtime._settings import RuntimeConfig
from chainrule.compat.tesseract_core.runtime._streams import result_descriptor
from chainrule.runtime import LocalComponent, load_component
from chainrule.runtime.internal import Run


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
        sys.stderr.write(f"Error: Invalid value for payload: {error}\n")
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
        except InputError as error:
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
    """Stop this server when nobody holds the other end of a pipe any more."""
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
