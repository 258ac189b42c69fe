"""Rules of the project that a tool can check: lint, formatting, layers, borders, the error page."""

import ast
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


def test_no_folder_of_a_run_is_in_the_repository():
    """A component leaves one where it logs, and the peer at every call: give each its `output_path`."""
    done = subprocess.run(
        ["git", "ls-files", "run_*", "**/run_*/logs/*"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == ""


def test_jax_internals_are_touched_in_one_place_only():
    offenders = [
        path.relative_to(ROOT)
        for path in SOURCE.rglob("*.py")
        if "_jaxpr" not in path.parts and re.search(r"\bjax\._src\b", path.read_text())
    ]
    assert offenders == []


def _package(path):
    return path.relative_to(SOURCE).parts[0]


def test_private_attributes_are_used_in_their_own_package_only():
    """`component._schemas` outside of `runtime`, for example. Named tuples and `os` have public `_names`."""
    public = {"_asdict", "_exit", "_fields", "_getframe", "_make", "_replace"}
    # OpenMDAO has no public name for the question whether `approx_totals` was called.
    unavoidable = {("openmdao", "_owns_approx_jac")}
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    known = {}
    for path, tree in trees.items():
        names = known.setdefault(_package(path), set(public))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        if _package(path) not in ("_jaxpr", "torch")  # which use names of JAX and torch
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr)
        if node.attr not in known[_package(path)] and ast.unparse(node.value) not in ("self", "cls")
        if (_package(path), node.attr) not in unavoidable
    ]
    assert offenders == []


def test_private_modules_have_no_all():
    """But for those whose names another module hands on: the ground, and what Tesseract components import."""
    handed_on = {"runtime/_files.py", "runtime/_runs.py"}
    offenders = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("_[a-z]*.py")
        if len(path.relative_to(SOURCE).parts) > 1
        and not _package(path).startswith("_")
        and re.search("^__all__ =", path.read_text(), re.MULTILINE)
    ]
    assert set(offenders) <= handed_on


def test_packages_list_their_modules_in_reading_order():
    """The docstring of a package names each of its private modules; `compat` has the ancestors' layout.

    An `__init__` defines nothing itself.
    """
    missing = []
    for init in SOURCE.rglob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(init.read_text())) or ""
        modules = [*init.parent.glob("_[a-z]*.py"), *init.parent.glob("_[a-z]*/__init__.py")]
        names = {path.parent.name if path.stem == "__init__" else path.stem for path in modules}
        kinds = (ast.FunctionDef, ast.ClassDef)
        assert not any(isinstance(n, kinds) for n in ast.parse(init.read_text()).body), init
        if _package(init) != "compat":
            missing += [
                f"{init.parent.name}: {n}" for n in names if not re.search(rf"\b{n}\b", text)
            ]
    assert missing == []


def test_internal_names_are_few_and_described():
    """A package that needs more than about 25 has its border in the wrong place."""
    for path in SOURCE.glob("*/internal.py"):
        tree = ast.parse(path.read_text())
        text = ast.get_docstring(tree)
        (names,) = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        assert len(names) <= 25, path
        assert [n for n in names if not re.search(rf"^{n} ", text, re.MULTILINE)] == [], path


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


def test_the_architecture_page_describes_the_whole_ground():
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    ground = page.partition("All packages use layer 0")[2].partition("`make lint`")[0]
    names = {path.stem for path in SOURCE.glob("_[a-z]*") if path.name != "__pycache__"}
    assert [name for name in sorted(names) if f"`{name}`" not in ground] == []


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
