"""`chainrule check-gradients`, `test` and `record`: `chainrule.runtime.testing` from the shell."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from chainrule._errors import InputError
from chainrule.cli._failures import failures
from chainrule.cli._payload import read_payload
from chainrule.cli._source import open_component
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import renderable_text, table_text
from chainrule.runtime import testing
from chainrule.runtime._component import LocalComponent

__all__ = ["check_gradients", "record", "run_tests"]


def check_gradients(
    source: str,
    payload: str | None,
    values: Sequence[str],
    options: Mapping[str, Any],
    input_path: Path,
    *,
    as_json: bool,
) -> None:
    """Compare derivatives with finite differences; exits with 1 when one is wrong."""
    with failures(as_json=as_json), result_stream() as stdout:
        component = open_component(source, {"input_path": input_path})
        body = _payload(component, payload, values)
        given = {name: value for name, value in options.items() if value is not None}
        report = testing.check_gradients(component, body, **given)
        text = json.dumps(report.to_dict()) + "\n" if as_json else renderable_text(report)
        stdout.write([text.encode()])
        if not report.passed:
            raise typer.Exit(1)


def run_tests(source: str, cases: Sequence[Path], *, as_json: bool) -> None:
    """Run regression tests; exits with 1 when one fails."""
    with failures(as_json=as_json), result_stream() as stdout:
        component = open_component(source)
        files = list(cases) or testing.find_tests(_folder(source))
        if not files:
            raise InputError(
                f"No test cases: expected test_cases/test_*.json in {_folder(source)}. "
                "`chainrule record` writes one.",
                code="tests_missing",
            )
        results = {str(file): _run_test(component, file) for file in files}
        stdout.write([_results_text(results, as_json).encode()])
        if not all(result.passed for result in results.values()):
            raise typer.Exit(1)


def _run_test(component: LocalComponent, file: Path) -> testing.RegressionResult:
    try:
        return testing.run_test(component, file)
    except (OSError, ValueError) as error:
        reason = f"{error.error_count()} problems" if isinstance(error, ValidationError) else error
        raise InputError(f"{file} is not a test case: {reason}.", code="bad_test_case") from error


def _results_text(results: Mapping[str, testing.RegressionResult], as_json: bool) -> str:
    if as_json:
        facts = {file: dataclasses.asdict(result) for file, result in results.items()}
        return json.dumps(facts) + "\n"
    rows = [(file, r.endpoint, r.status, r.message) for file, r in results.items()]
    return table_text("regression tests", ("case", "endpoint", "status", "message"), rows)


def record(
    source: str,
    endpoint: str,
    payload: str | None,
    values: Sequence[str],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write a regression test of what the component answers now."""
    with failures(as_json=as_json), result_stream() as stdout:
        component = open_component(source)
        body = _payload(component, payload, values)
        name = endpoint.replace("-", "_")
        file = output or _free_name(_folder(source) / "test_cases", f"test_{name}")
        if file.exists():
            raise InputError(f"{file} exists already; nothing was written.", code="file_exists")
        testing.record(component, name, body, path=file)
        text = json.dumps({"written": str(file)}) if as_json else str(file)
        stdout.write([f"{text}\n".encode()])


def _payload(
    component: LocalComponent, payload: str | None, values: Sequence[str]
) -> dict[str, Any]:
    config = component.config
    return read_payload(payload, values, grants=config.grants, limits=config.limits)


def _folder(source: str) -> Path:
    path = Path(source.rpartition(":")[0] if ".py:" in source else source)
    return path if path.is_dir() else path.parent


def _free_name(folder: Path, stem: str) -> Path:
    count = 1
    while (folder / f"{stem}_{count}.json").exists():
        count += 1
    return folder / f"{stem}_{count}.json"
