"""The last step of a build, run inside the image: what it is made of, and whether the component works.

python -m chainrule.deploy.images._inside /component/component.py --check --run-tests
"""

from __future__ import annotations

import hashlib
import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from chainrule._errors import ChainruleError, ComponentError
from chainrule.deploy.images._sbom import bill_of_materials
from chainrule.runtime import LocalComponent, load_component
from chainrule.runtime.testing import check_gradients, find_tests, run_test

FACTS = Path("/opt/chainrule/facts.json")
BILL = Path("/opt/chainrule/sbom.cdx.json")


def main(arguments: list[str] | None = None) -> int:
    """Write the facts and the bill of materials; 1 when a check fails."""
    options = _parser().parse_args(arguments)
    step = "component"
    try:
        facts: dict[str, Any] = {"name": "unknown", "version": "unknown"}
        if options.check or options.run_tests or options.check_gradients is not None:
            component = load_component(options.component, config={"require_files": False})
            facts = facts_of(component)
            step = "regression tests"
            if options.run_tests:
                _run_tests(component, options)
            step = "gradient check"
            if options.check_gradients is not None:
                _check_gradients(component, options.check_gradients)
    except ChainruleError as error:
        _say_failure(step, error)
        return 1
    FACTS.write_text(json.dumps(facts, sort_keys=True))
    bill = bill_of_materials(facts["name"], facts["version"])
    BILL.write_text(json.dumps(bill, indent=1, sort_keys=True))
    return 0


def facts_of(component: LocalComponent) -> dict[str, Any]:
    """What only the loaded component knows: its name and version, its schema's hash, its endpoints."""
    document = component.openapi_schema
    interface = {key: document[key] for key in ("paths", "components")}
    text = json.dumps(interface, sort_keys=True, separators=(",", ":"))
    return {
        "name": component.name,
        "version": component.version,
        "schema_hash": hashlib.sha256(text.encode()).hexdigest(),
        "content_hash": component.content_hash,
        "endpoints": component.available_endpoints,
    }


def _parser() -> ArgumentParser:
    parser = ArgumentParser()
    parser.add_argument("component")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run-tests", action="store_true")
    parser.add_argument("--check-gradients", type=Path)
    return parser


def _run_tests(component: LocalComponent, options: Namespace) -> None:
    folder = Path(options.component.partition(".py:")[0]).parent
    for file in find_tests(folder):
        result = run_test(component, file)
        if not result.passed:
            raise ComponentError(f"{file.name}: {result.message}", code="test_failed")
        sys.stderr.write(f"{file.name}: passed\n")


def _check_gradients(component: LocalComponent, payload: Path) -> None:
    report = check_gradients(component, json.loads(payload.read_text()), show_progress=False)
    sys.stderr.write(f"{report}\n")
    if not report.passed:
        raise ComponentError("The derivatives are not those of apply.", code="gradients_wrong")


def _say_failure(step: str, error: ChainruleError) -> None:
    import traceback

    if error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    sys.stderr.write(f"Error: {error}\nchainrule-build-failed: {step}\n")


if __name__ == "__main__":
    sys.exit(main())
