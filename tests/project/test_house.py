"""The rules of the house that a machine can hold: lint, formatting, floors, the error page."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from chainrule import _errors

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "chainrule"
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]],
    ids=lambda command: " ".join(command),
)
def test_tool_is_content(command):
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_jax_internals_are_touched_in_one_place_only():
    offenders = [
        path.relative_to(ROOT)
        for path in SOURCE.rglob("*.py")
        if "_jaxpr" not in path.parts and re.search(r"\bjax\._src\b", path.read_text())
    ]
    assert offenders == []


def test_the_map_for_contributors_names_what_exists():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition("| to change |")[2].partition("\n\n")[0]
    drawn = page.partition("## Map")[2].partition("A layer imports")[0]
    packages = {name for line in drawn.splitlines() for name in line[7:50].split()} - {"…"}
    places = [row.split("|")[2] for row in table.splitlines()[2:]]
    named = set(re.findall(r"`([\w.]+)`", " ".join(places))) | packages
    assert len(named) > 25
    assert all(find_spec(f"chainrule.{name}") for name in named)
    public = {path.parent.name for path in SOURCE.glob("[a-z]*/__init__.py")}
    assert public <= packages


def test_error_page_lists_every_class_with_its_facts():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    for name in _errors.__all__:
        cls = getattr(_errors, name)
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        assert f"`{cls.default_code}`" in row
        assert f"| {cls.http_status} | {cls.exit_code} |" in row


def test_error_codes_are_all_on_their_page():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import error_codes
    finally:
        sys.path.pop(0)
    page = error_codes.PAGE.read_text()
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    raised = set(error_codes.codes())
    assert raised == listed, "run: python scripts/error_codes.py"
    assert {"array_shape_mismatch", "array_unit_mismatch", "storage_full"} <= raised
    assert all(re.fullmatch("[a-z][a-z0-9_]*", code) for code in raised)
    assert set(error_codes.explanations()) <= raised, "scripts/error_explanations.yaml"
