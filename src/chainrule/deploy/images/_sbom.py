"""A software bill of materials in CycloneDX 1.5: what is installed here, of Python and of Debian."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_DPKG_STATUS = Path("/var/lib/dpkg/status")
_SPACE = uuid.UUID("b6a2ff2c-9a3e-5d14-8e0b-6f0f8a3b7a55")


def bill_of_materials(name: str, version: str) -> dict[str, Any]:
    """What this environment consists of, as a CycloneDX document.

    Args:
        name: of the component that it is made for.
        version: of that component.
    """
    parts = sorted([*_python_packages(), *_debian_packages()], key=lambda part: part["purl"])
    # The same content has the same number: no clock, no chance.
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
