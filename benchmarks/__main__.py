"""`make bench`: run every benchmark, print one table, and write it to docs/benchmarks.md.

The table of orders goes to docs/explanation/elimination.md as well, times of transports to
docs/how-to/choose-a-transport.md. Pages are written after every file, so what was measured before something
failed or was stopped by Ctrl-C is there; the page names what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import pkgutil
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import benchmarks
from benchmarks import _charts, _transports, bench_orders
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


@dataclass
class Progress:
    """What has been measured so far, and what has not."""

    tables: dict[str, list[Row]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [row for table in self.tables.values() for row in table]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", help="run just these, e.g. frames; nothing is written")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the sections of just these to docs/benchmarks.md",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 when a bar is not met or a file fails"
    )
    options = parser.parse_args()
    names = [
        module.name.removeprefix("bench_")
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith("bench_")
    ]
    progress = Progress(missing=options.only or names)
    write = _write if not options.only else _write_sections if options.write else None
    try:
        with _terminated_like_interrupted():
            _measure(progress, write)
    except KeyboardInterrupt:
        print(f"\nstopped; not measured: {', '.join(progress.missing)}", file=sys.stderr)
        return 130
    finally:
        show(progress.rows)
    is_met = not progress.missing and all(row.met is not False for row in progress.rows)
    return int(options.strict and not is_met)


def _measure(progress: Progress, write: Callable[[Progress], object] | None) -> None:
    """Run what is missing. The pages are written after every file: what is measured is kept."""
    for name in list(progress.missing):
        print(f"… {name}", file=sys.stderr, end="", flush=True)
        start = time.monotonic()
        table = _run_alone(name)
        seconds = time.monotonic() - start
        print(f" {seconds:.0f} s", file=sys.stderr)
        if table is None:
            continue
        progress.tables[name], progress.seconds[name] = table, seconds
        progress.missing.remove(name)
        if write is not None:
            write(progress)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM raises `KeyboardInterrupt` inside, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_alone(name: str) -> list[Row] | None:
    """The rows of one benchmark, from a process of its own: none warms or disturbs another.

    `None` when it did not finish. The servers that it started end with it, in every case.
    """
    code = (
        "import dataclasses, json, pathlib, sys\n"
        f"from benchmarks.bench_{name} import run\n"
        "rows = [dataclasses.asdict(row) for row in run()]\n"
        "pathlib.Path(sys.argv[1]).write_text(json.dumps(rows))"
    )
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "rows.json")
        command = [sys.executable, "-c", code, str(answer)]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                process.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                print(f" did not finish within {_LIMIT_S} s;", file=sys.stderr, end="")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        if not answer.exists():
            return None
        return [Row(**facts) for facts in json.loads(answer.read_text())]


def _write(progress: Progress) -> None:
    """The page, and the tables on other pages whose figures are there."""
    PAGE.write_text(_page(progress) + _kept_sections())
    if "orders" in progress.tables:
        _fill(EXPLANATION, "orders", bench_orders.table(progress.tables["orders"]))
    _fill(TRANSPORTS, "transports", _transports.table(PAGE.read_text()))


def _write_sections(progress: Progress) -> None:
    """The sections of what was measured, each with its day; the others stay as they are."""
    page = PAGE.read_text()
    for name, rows in progress.tables.items():
        day, load = datetime.date.today().isoformat(), os.getloadavg()[1]
        took = f"Measured alone on {day} (load {load:.1f}), in {progress.seconds[name]:.0f} s."
        section = f"\n## {name}\n\n{took}\n\n{markdown(rows)}"
        before, heading, after = page.partition(f"\n## {name}\n")
        if not heading:  # a new one: before what is written by hand
            before, _, after = page.partition("\n## On a GPU\n")
            after = f"\n## On a GPU\n{after}"
        else:
            _, next_heading, after = after.partition("\n## ")
            after = next_heading + after
        page = before + section + after
    PAGE.write_text(page)


def _page(progress: Progress) -> str:
    found = [(name, _version(name)) for name in _VERSIONS]
    versions = ", ".join(f"{name} {version}" for name, version in found if version)
    day = datetime.date.today().isoformat()
    load = os.getloadavg()[1]
    head = (
        "---\nhide: [toc]  # room for the tables\n---\n"
        "# Benchmarks\n\n"
        "Every speed claim has a file in `benchmarks/` that measures Chainrule, the peer and the floor in "
        "turns in one run. `make bench` writes this page. Run it on your machine, and compare ratios, not "
        "seconds.\n\n"
        f"{_not_met(progress)}\n"
        f"## Five charts\n\n{_charts.write(progress.rows, PAGE)}\n"
        "## How it was measured\n\n"
        "Each row compares Chainrule with a peer or with a floor. The floor is the time that the machine, "
        "or code written by hand, needs for the same work. `make bench` prints this table and exits with 0; "
        "`python -m benchmarks --strict` exits with 1 when a bar is not met or a file fails; "
        "`python -m benchmarks frames http` runs only the named files.\n\n"
        f"{day}, {os.cpu_count()} cores of {_processor()} shared with others (load {load:.1f}), Python "
        f"{platform.python_version()}, {versions}. "
        "GPU figures are [at the end](#on-a-gpu).\n"
    )
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in progress.seconds.items())
    minutes = sum(progress.seconds.values()) / 60
    head += f"\nIt took {minutes:.1f} minutes: {took}.\n"
    if progress.missing:
        head += f"\nDid not finish in this run: {', '.join(progress.missing)}.\n"
    sections = (
        f"\n## {name}\n\n{markdown(rows)}" for name, rows in progress.tables.items() if rows
    )
    return head + "".join(sections)


def _not_met(progress: Progress) -> str:
    """The first section of the page: the bars that were not met."""
    judged = [row for row in progress.rows if row.met is not None]
    missed = [row for row in judged if not row.met]
    if not missed:
        return f"## What is not met\n\nAll {len(judged)} bars are met in this run.\n"
    places = ", ".join(
        f"[{name}](#{name})"
        for name, rows in progress.tables.items()
        if any(row.met is False for row in rows)
    )
    return (
        f"## What is not met\n\n{len(missed)} of {len(judged)} bars are not met in this run. "
        f"They are in {places}. [Bars at the floor](#bars-at-the-floor) says what was tried; "
        "GPU bars are [at the end](#on-a-gpu).\n\n"
        f"{markdown(missed)}"
    )


def _processor() -> str:
    """The model of the processor if the system reports it, else the architecture."""
    facts = Path("/proc/cpuinfo")
    found = re.search(
        r"^model name\s*: (.+)$", facts.read_text() if facts.exists() else "", re.MULTILINE
    )
    return found[1] if found else platform.machine()


def _kept_sections() -> str:
    """The part that is written by hand: everything from "On a GPU" on."""
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
