"""`chainrule apply`, `jacobian`, `jvp`, `vjp` and `abstract-eval`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from chainrule._errors import InputError, StorageError
from chainrule.cli._failures import failures
from chainrule.cli._payload import read_payload
from chainrule.cli._source import open_component
from chainrule.cli._streams import result_stream
from chainrule.runtime._codec import BinrefWriter, encode_body
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._runs import Run

__all__ = ["call_endpoint"]


def call_endpoint(
    source: str,
    endpoint: str,
    payload: str | None,
    values: Sequence[str],
    settings: Mapping[str, Any],
    *,
    output_file: str | None,
    redirect_peer: bool,
    errors_as_json: bool,
) -> None:
    """Run an endpoint and write its result to standard output, or to a file in the output path."""
    with failures(as_json=errors_as_json), result_stream() as stdout:
        config = ComponentConfig.make(settings)
        if config.profiling or config.tracing:
            logging.basicConfig(level=logging.INFO, format="%(message)s")
        body = read_payload(payload, values, grants=config.grants, limits=config.limits)
        component = open_component(source, settings, redirect_peer=redirect_peer)
        result = component.call(endpoint, body, run=Run(component.config, is_flat=True))
        pieces = _encode(result, config)
        if output_file is None:
            stdout.write([*pieces, b"\n"])
        else:
            _write_file(config.output_path, output_file, pieces)


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
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            stream.writelines(pieces)
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"Cannot write {target}: {error.strerror}.") from error
