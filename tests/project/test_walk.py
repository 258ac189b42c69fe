"""docs/explanation/architecture.md shows the modules that really run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"


def modules_on_the_page(way):
    section = re.search(rf"<!-- walk: {way} -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)[1]
    return set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE))


@pytest.mark.parametrize("way", ["request", "gradient", "jacobian"])
def test_ways_are_as_the_page_shows_them(way):
    """In a process of its own: what other tests have cached or installed is not part of the way."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "walk.py"), way], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    walked = set(re.findall(r"^  ([\w.]+) +\d+", done.stdout, re.MULTILINE))
    assert walked == modules_on_the_page(way), "run: python scripts/walk.py --write"


def test_another_checkout_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "chainrule").mkdir()
    (tmp_path / "chainrule" / "__init__.py").touch()
    before = PAGE.read_text()
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "walk.py"), "--write"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert PAGE.read_text() == before


def test_files_on_the_page_exist():
    named = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE.read_text())
    assert named
    assert not [
        name
        for name in named
        if not (ROOT / "src" / "chainrule" / name).exists() and not (ROOT / name).exists()
    ]
