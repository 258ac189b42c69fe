"""`make bench`: what it prints, writes and exits with, on made-up rows."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from xml.etree import ElementTree

import psutil
import pytest
from benchmarks import __main__ as bench
from benchmarks import _charts
from benchmarks._harness import Row

MET = Row("fast enough", 0.9e-3, 1e-3, "the floor", bar=1.0)
MISSED = Row("too slow", 3.0, 1.0, "Tesseract.from_url", bar=2.0, note="shared | machine")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """`python -m benchmarks` with these tables, on pages of its own."""
    for name in ("PAGE", "EXPLANATION", "TRANSPORTS"):
        page = tmp_path / f"{name}.md"
        page.write_text(getattr(bench, name).read_text())
        monkeypatch.setattr(bench, name, page)
    monkeypatch.setattr(bench.bench_orders, "table", lambda rows: f"{len(rows)} rows of orders")

    def run_with(tables, *arguments):
        found = tables if callable(tables) else lambda name: tables.get(name, [MET])
        monkeypatch.setattr(bench, "_run_alone", found)
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        return bench.main()

    return run_with


@pytest.mark.parametrize(
    ("tables", "strict"), [({}, 0), ({"http": [MISSED]}, 1), ({"http": None}, 1)]
)
def test_exit_codes(run, tables, strict):
    assert run(tables) == 0
    assert run(tables, "--strict") == strict


def test_the_page_has_everything(run):
    run({"http": [MISSED], "cli": None})
    text = bench.PAGE.read_text()
    assert re.search(r"^\d{4}-\d\d-\d\d, \d+ cores .*load \d.*Python 3.*jax \d", text, re.MULTILINE)
    assert "| fast enough | 900 µs |  | 1 ms (the floor) | 0.9 | ≤ 1 | yes |  |" in text
    assert (
        "| too slow | 3 s | 1 s (Tesseract.from_url) |  | 3 | ≤ 2 | NO | shared / machine |" in text
    )
    assert "Did not finish in this run: cli." in text
    assert "\n## On a GPU\n" in text  # what other machines measured is kept
    assert "not measured" in bench.TRANSPORTS.read_text()
    assert "1 rows of orders" in bench.EXPLANATION.read_text()


def test_what_is_not_met_comes_first_then_charts_then_tables(run):
    run({"http": [MISSED], "import": [Row("import chainrule", 2.0, 1.0, "import tesseract_core")]})
    text = bench.PAGE.read_text()
    places = [text.index(f"\n## {title}\n") for title in ("What is not met", "Five charts", "http")]
    assert places == sorted(places)
    assert text.index("| too slow |") < places[1]
    svg = (bench.PAGE.parent / "assets" / "benchmarks" / "start.svg").read_text()
    assert "2 s  Chainrule" in svg
    assert "1 s  import tesseract_core" in svg
    assert ElementTree.fromstring(svg).get("aria-label") == "Start and validation"


def test_charts_show_claims_that_are_measured():
    page = (bench.PAGE).read_text()
    for _, claims in _charts._CHARTS.values():
        assert [claim for claim in claims.values() if f"\n| {claim} |" not in page] == []


@pytest.fixture
def interruptible():
    """A run in the background of a shell ignores Ctrl-C from its start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_before_a_signal_is_kept(run, monkeypatch, capsys, number):
    def until_http(name):
        if name == "http":
            os.kill(os.getpid(), number)
        return [MET]

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert run(until_http) == 130
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    text = bench.PAGE.read_text()
    assert "\n## harvest\n" in text
    missing = re.search(r"^Did not finish in this run: (.*)\.$", text, re.MULTILINE)[1].split(", ")
    assert missing[0] == "http"
    assert not any(f"\n## {name}\n" in text for name in missing)
    assert "fast enough" in capsys.readouterr().out


def test_what_a_benchmark_starts_ends_with_it(tmp_path, monkeypatch):
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "bench_broken.py").write_text(
        "import pathlib, subprocess\n"
        "def run():\n"
        "    pathlib.Path('pid').write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "    raise RuntimeError\n"
    )
    monkeypatch.chdir(tmp_path)
    assert bench._run_alone("broken") is None
    with contextlib.suppress(psutil.NoSuchProcess):
        sleeper = psutil.Process(int((tmp_path / "pid").read_text()))
        assert sleeper.status() == psutil.STATUS_ZOMBIE or sleeper.wait(30) is None


def test_some_write_nothing(run):
    before = bench.PAGE.read_text()
    run({}, "frames")
    assert bench.PAGE.read_text() == before


def test_some_write_their_own_sections(run):
    """One that is there already and one that is new; what is written by hand stays last."""
    before = bench.PAGE.read_text()
    run({"http": [MET], "growth": [MISSED]}, "http", "growth", "--write")
    text = bench.PAGE.read_text()
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL))
    for name, claim in (("http", MET.claim), ("growth", MISSED.claim)):
        assert sections[name].startswith("Measured alone on ")
        assert sections[name].count(f"| {claim} |") == 1
    assert text.index("\n## growth\n") < text.index("\n## On a GPU\n")
    others = re.findall(r"^## .*$", before, re.MULTILINE)
    assert [h for h in re.findall(r"^## .*$", text, re.MULTILINE) if h in others] == others
    assert text.partition("\n## import\n")[2].partition("\n## ")[0] in before


def test_every_file_is_run():
    files = sorted(bench.PAGE.parents[1].glob("benchmarks/bench_*.py"))
    assert len(files) > 10
    assert all("def run() -> list[Row]" in file.read_text() for file in files)
