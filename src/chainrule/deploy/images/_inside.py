"""The last step of a build, run inside the image: which packages it has, and whether the component works.

python -m chainrule.deploy.images._inside /component/component.py --check --run-tests
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from chainrule._errors import ChainruleError, ComponentError
from chainrule.runtime import LocalComponent, load_component
from chainrule.runtime.internal import split_source
from chainrule.runtime.testing import check_gradients, find_tests, run_test

FACTS = Path("/opt/chainrule/facts.json")
BILL = Path("/opt/chainrule/sbom.cdx.json")
_DPKG_STATUS = Path("/var/lib/dpkg/status")
_SPACE = uuid.UUID("b6a2ff2c-9a3e-5d14-8e0b-6f0f8a3b7a55")


def main(arguments: list[str] | None = None) -> int:
    """Write the facts and the bill of materials; return 1 when a check fails."""
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
    """Facts that only a loaded component knows: name, version, hash of the schema, endpoints."""
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
    path, _ = split_source(options.component)
    for file in find_tests(path.parent):
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


def bill_of_materials(name: str, version: str) -> dict[str, Any]:
    """The Python and Debian packages of this environment, as a CycloneDX 1.5 document.

    Args:
        name: name of the component.
        version: version of the component.
    """
    parts = sorted([*_python_packages(), *_debian_packages()], key=lambda part: part["purl"])
    # Equal contents have equal serial numbers, so no clock and no random number is used.
    serial = uuid.uuid5(_SPACE, "\n".join([name, version, *(part["purl"] for part in parts)]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": name, "version": version}},
        "components": parts,
    }


def _python_packages() -> Iterator[dict[str, Any]]:
    seen = set()
    for found in distributions():
        name = re.sub(r"[-_.]+", "-", found.name).lower()
        if name not in seen:
            seen.add(name)
            yield _part(name, found.version, f"pkg:pypi/{name}@{found.version}", _licence(found))


def _licence(found: Distribution) -> str | None:
    facts = found.metadata.json
    stated = str(facts.get("license_expression") or facts.get("license") or "").strip()
    # Some packages put the whole text of their licence here.
    return stated if stated and "\n" not in stated else None


def _debian_packages() -> Iterator[dict[str, Any]]:
    if not _DPKG_STATUS.is_file():
        return
    for paragraph in _DPKG_STATUS.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        facts = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", paragraph, re.M))
        if facts.get("Status", "").endswith(" installed"):
            name, version = facts["Package"], facts["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={facts.get('Architecture', 'all')}"
            yield _part(name, version, purl, None)


def _part(name: str, version: str, purl: str, licence: str | None) -> dict[str, Any]:
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if licence is not None:
        part["licenses"] = [{"license": {"name": licence}}]
    return part


if __name__ == "__main__":
    sys.exit(main())
