"""The rules of the house that a machine can hold: lint, formatting, floors, the error page."""

import re
import subprocess
import sys
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
