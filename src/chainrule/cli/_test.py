"""`chainrule test`."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chainrule._errors import ChainruleError, InputError
from chainrule.cli._arguments import add_component_or_url
from chainrule.cli._source import component_folder, opened
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import table_text
from chainrule.runtime.testing import RegressionResult, find_tests, run_test


def add_arguments(parser: ArgumentParser) -> None:
    """The component and its test cases."""
    add_component_or_url(parser)
    parser.add_argument(
        "cases",
        metavar="CASE",
        nargs="*",
        type=Path,
        help="test cases; test_cases/test_*.json beside the component, or here for a URL, by default",
    )


def run(options: Namespace) -> int:
    """Run regression tests; 1 when one fails."""
    with result_stream() as stdout, opened(options) as component:
        files = options.cases or find_tests(component_folder(options))
        if not files:
            raise InputError(
                f"No test cases: expected test_cases/test_*.json in {component_folder(options)}. "
                "`chainrule record` writes one.",
                code="tests_missing",
            )
        results = {str(file): _run_test(component, file) for file in files}
        stdout.write_text(_text(results, options.json))
    return int(not all(result.passed for result in results.values()))


def _run_test(component: Any, file: Path) -> RegressionResult:
    try:
        return run_test(component, file)
    except ChainruleError:  # of the way to the component: tests that fail are results
        raise
    except (OSError, ValueError) as error:
        reason = f"{error.error_count()} problems" if isinstance(error, ValidationError) else error
        raise InputError(f"{file} is not a test case: {reason}.", code="bad_test_case") from error


def _text(results: Mapping[str, RegressionResult], as_json: bool) -> str:
    if as_json:
        facts = {file: dataclasses.asdict(result) for file, result in results.items()}
        return json.dumps(facts) + "\n"
    rows = [(file, r.endpoint, r.status, r.message) for file, r in results.items()]
    return table_text("regression tests", ("case", "endpoint", "status", "message"), rows)
