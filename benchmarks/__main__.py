"""`make bench`: run every benchmark, print one table, and write it to docs/benchmarks.md.

The table of orders goes to docs/explanation/elimination.md as well, times of transports to
docs/how-to/choose-a-transport.md.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import pkgutil
import platform
import re
import subprocess
import sys
from pathlib import Path

import benchmarks
from benchmarks import _transports, bench_orders
from benchmarks._harness import Row, markdown, show

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
EXPLANATION = PAGE.parent / "explanation" / "elimination.md"
TRANSPORTS = PAGE.parent / "how-to" / "choose-a-transport.md"
_LIMIT_S = 900
_VERSIONS = (
    "jax",
    "numpy",
    "pydantic",
    "tesseract-core",
    "tesseract-jax",
    "flax",
    "equinox",
    "asdex",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", help="run just these, e.g. frames; nothing is written")
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 when a bar is not met or a file fails"
    )
    options = parser.parse_args()
    names = [
        module.name.removeprefix("bench_")
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith("bench_")
    ]
    found = {name: _run_alone(name) for name in options.only or names}
    failed = [name for name, table in found.items() if table is None]
    tables = {name: table for name, table in found.items() if table is not None}
    rows = [row for table in tables.values() for row in table]
    show(rows)
    if not options.only:
        PAGE.write_text(_page(tables, failed) + _kept_sections())
        if "orders" in tables:
            _fill(EXPLANATION, "orders", bench_orders.table(tables["orders"]))
        _fill(TRANSPORTS, "transports", _transports.table(PAGE.read_text()))
    return int(options.strict and (bool(failed) or any(row.met is False for row in rows)))


def _run_alone(name: str) -> list[Row] | None:
    """The rows of one benchmark, from a process of its own: none warms or disturbs another.

    `None` when it did not finish.
    """
    print(f"… {name}", file=sys.stderr, flush=True)
    code = (
        "import dataclasses, json, sys\n"
        f"from benchmarks.bench_{name} import run\n"
        "sys.stdout.write('\\n' + json.dumps([dataclasses.asdict(row) for row in run()]))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        print(f"{name} did not finish: {error}", file=sys.stderr)
        return None
    return [Row(**facts) for facts in json.loads(done.stdout.splitlines()[-1])]


def _page(tables: dict[str, list[Row]], failed: list[str]) -> str:
    found = [(name, _version(name)) for name in _VERSIONS]
    versions = ", ".join(f"{name} {version}" for name, version in found if version)
    day = datetime.date.today().isoformat()
    load = os.getloadavg()[1]
    head = (
        "# Benchmarks\n\n"
        "Every speed claim is a file in `benchmarks/` that measures us, the peer and the floor in turns "
        "in one run. This page is what `make bench` writes; run it on your machine, and compare ratios, not "
        "seconds.\n\n"
        "A row is against a peer or against a floor: what the machine, or code written by hand, needs for "
        "the same. `make bench` prints this table and exits 0; `python -m benchmarks --strict` exits 1 when "
        "a bar is not met or a file fails; `python -m benchmarks frames http` runs some.\n\n"
        f"{day}, {os.cpu_count()} cores of {_processor()} shared with others (load {load:.1f}), Python "
        f"{platform.python_version()}, {versions}. "
        "Figures of a GPU are at the end.\n"
    )
    sections = [f"\n## {name}\n\n{markdown(table)}" for name, table in tables.items() if table]
    missing = f"\nDid not finish in this run: {', '.join(failed)}.\n" if failed else ""
    return head + missing + "".join(sections)


def _processor() -> str:
    """The model of the processor where the system tells it, else its kind."""
    facts = Path("/proc/cpuinfo")
    found = re.search(
        r"^model name\s*: (.+)$", facts.read_text() if facts.exists() else "", re.MULTILINE
    )
    return found[1] if found else platform.machine()


def _kept_sections() -> str:
    """What was measured on other machines and written by hand: everything from "On a GPU" on."""
    before = PAGE.read_text() if PAGE.exists() else ""
    _, heading, rest = before.partition("\n## On a GPU\n")
    return heading + rest


def _fill(page: Path, name: str, content: str) -> None:
    """Write what stands between two comments of a page."""
    begin, end = f"<!-- {name}: written by make bench -->\n", f"<!-- {name}: end -->"
    before, _, rest = page.read_text().partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{content}\n{end}{after}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
