"""`chainrule check-gradients`, `record` and `test`: whether a component computes what it should."""

from __future__ import annotations

import dataclasses
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chainrule._errors import ChainruleError, InputError
from chainrule.cli._call import endpoint_name
from chainrule.cli._output import make_table, result_stream, write_result
from chainrule.cli._payload import add_payload, given_payload, inputs_explained
from chainrule.cli._sources import (
    add_component,
    add_folders,
    component_folder,
    opened,
)
from chainrule.runtime import ComponentConfig
from chainrule.runtime.testing import (
    RegressionResult,
    check_gradients,
    find_tests,
    record,
    run_test,
)


def add_gradient_arguments(parser: ArgumentParser) -> None:
    """The component, a point, and what to look at there."""
    add_component(parser)
    add_payload(parser)
    add_folders(parser)
    for flag, metavar, what in (
        ("--input-paths", "PATH", "input"),
        ("--output-paths", "PATH", "output"),
        ("--endpoints", "ENDPOINT", "endpoint"),
    ):
        parser.add_argument(
            flag,
            action="append",
            metavar=metavar,
            help=f"Check only this {what}; repeat for more (default: all)",
        )
    parser.add_argument(
        "--eps",
        type=float,
        metavar="STEP",
        help="Step of the differences (default: chosen for each input)",
    )
    parser.add_argument(
        "--eps-for",
        action="append",
        default=[],
        metavar="PATH=STEP",
        help="Step of one input; repeat for more (default: as --eps)",
    )
    parser.add_argument("--rtol", type=float, default=0.1, help="Allow this relative error")
    parser.add_argument(
        "--max-evals",
        type=int,
        default=1000,
        metavar="N",
        help="Evaluate the component at most N times",
    )
    parser.add_argument(
        "--max-output-samples",
        type=int,
        metavar="N",
        help="Compare a sample of N output elements (default: all)",
    )
    parser.add_argument(
        "--max-failures",
        type=int,
        default=10,
        metavar="N",
        help="Show at most N wrong entries of a check",
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample")
    parser.add_argument(
        "--no-show-progress",
        dest="show_progress",
        action="store_false",
        help="Do not show the progress",
    )
    parser.set_defaults(handler=_check_gradients)


def _check_gradients(options: Namespace) -> int:
    """Exit with 1 when a derivative is wrong."""
    files = {"input_path": options.input_path}
    with result_stream() as stdout, opened(options, files) as component:
        names = options.endpoints
        config = getattr(component, "config", None) or ComponentConfig.make(files)
        payload = given_payload(options, config)
        with inputs_explained(options, payload):
            report = check_gradients(
                component,
                payload,
                input_paths=options.input_paths,
                output_paths=options.output_paths,
                endpoints=None if names is None else [endpoint_name(name) for name in names],
                eps=_eps(options),
                rtol=options.rtol,
                max_evals=options.max_evals,
                max_output_samples=options.max_output_samples,
                seed=options.seed,
                show_progress=options.show_progress,
            )
        facts = report.to_dict(options.max_failures)
        write_result(options, facts, lambda: report.table(options.max_failures), to=stdout)
    return int(not report.passed)


def _eps(options: Namespace) -> Any:
    if not options.eps_for:
        return "auto" if options.eps is None else options.eps
    try:
        pairs = (entry.rpartition("=") for entry in options.eps_for)
        return {path: float(value) for path, _, value in pairs}
    except ValueError as error:
        raise InputError(
            "--eps-for takes PATH=VALUE with a number, for example --eps-for x=1e-4.",
            code="bad_option",
        ) from error


def add_record_arguments(parser: ArgumentParser) -> None:
    """The component, the call, and the file to write."""
    add_component(parser)
    parser.add_argument(
        "endpoint", metavar="ENDPOINT", help="Endpoint to call, such as apply or vjp"
    )
    add_payload(parser)
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="Write the test case to this file (default: test_cases/test_ENDPOINT_N.json)",
    )
    parser.add_argument(
        "--expect-error",
        action="store_true",
        help="Record the exception that the call raises; without it a failing call records nothing",
    )
    parser.set_defaults(handler=_record)


def _record(options: Namespace) -> int:
    """Call the endpoint and write the test case."""
    with result_stream() as stdout, opened(options) as component:
        endpoint = endpoint_name(options.endpoint)
        config = getattr(component, "config", None) or ComponentConfig()
        payload = given_payload(options, config)
        folder = component_folder(options.component) / "test_cases"
        file = options.output or _free_name(folder, f"test_{endpoint}")
        if file.exists():
            raise InputError(f"{file} exists already; nothing was written.", code="file_exists")
        with inputs_explained(options, payload):
            record(component, endpoint, payload, path=file, expect_exception=options.expect_error)
        write_result(options, {"written": str(file)}, f"{file}\n", to=stdout)
    return 0


def _free_name(folder: Path, stem: str) -> Path:
    count = 1
    while (folder / f"{stem}_{count}.json").exists():
        count += 1
    return folder / f"{stem}_{count}.json"


def add_test_arguments(parser: ArgumentParser) -> None:
    """The component and its test cases."""
    add_component(parser)
    parser.add_argument(
        "cases",
        metavar="CASE",
        nargs="*",
        type=Path,
        help="Files of test cases (default: test_cases/test_*.json beside the component, or in the working "
        "directory for a URL)",
    )
    parser.add_argument(
        "--input-path",
        "-i",
        type=Path,
        metavar="FOLDER",
        help="Let test cases name files in this folder (default: that in the cli_config of a case, or else "
        "input_data beside the component, if there)",
    )
    parser.set_defaults(handler=_test)


def _test(options: Namespace) -> int:
    """Exit with 1 when a test fails."""
    with (
        result_stream() as stdout,
        tempfile.TemporaryDirectory() as outputs,
        opened(options, {**_input_folder(options), "output_path": Path(outputs)}) as component,
    ):
        files = options.cases or find_tests(component_folder(options.component))
        if not files:
            raise InputError(
                f"No test cases: expected test_cases/test_*.json in {component_folder(options.component)}. "
                "`chainrule record` writes one.",
                code="tests_missing",
            )
        results = {str(file): _run_test(component, file, options.input_path) for file in files}
        facts = {file: dataclasses.asdict(result) for file, result in results.items()}
        write_result(options, facts, lambda: _test_table(results), to=stdout)
    return int(not all(result.passed for result in results.values()))


def _input_folder(options: Namespace) -> dict[str, Path]:
    """The folder whose files test cases may name where nothing else is said."""
    folder = component_folder(options.component) / "input_data"
    return {"input_path": folder} if folder.is_dir() else {}


def _run_test(component: Any, file: Path, input_path: Path | None) -> RegressionResult:
    try:
        return run_test(component, file, input_path=input_path)
    except ChainruleError:  # the component cannot be reached; a test that fails is a result
        raise
    except (OSError, ValueError) as error:
        reason = f"{error.error_count()} problems" if isinstance(error, ValidationError) else error
        raise InputError(f"{file} is not a test case: {reason}.", code="bad_test_case") from error


def _test_table(results: Mapping[str, RegressionResult]) -> Any:
    failed = sum(not result.passed for result in results.values())
    verdict = f"{failed} of {len(results)} cases FAILED" if failed else f"all {len(results)} passed"
    rows = [(file, r.endpoint, r.status, r.message) for file, r in results.items()]
    return make_table(f"test: {verdict}", ("case", "endpoint", "status", "message"), rows)
