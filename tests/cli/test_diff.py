"""What breaks callers, and what does not."""

import json

import pytest

from chainrule.cli import main
from chainrule.runtime import component
from chainrule.runtime import component as make

HEADER = "from chainrule.runtime import *\nfrom pydantic import BaseModel\n"
OLD = """
class Inner(BaseModel):
    w: Array[(None, 3), Float64]

def f(
    x: Differentiable[Array[(None,), Float64]],
    inner: Inner,
    mode: str = "a",
    items: list[Array[(2,), Float32]] = [],
) -> tuple[Differentiable[Array[(3,), Float64]], int]: ...
"""


def document(text):
    namespace = {}
    exec(HEADER + text, namespace)
    # Differences need an input that is marked, which one of the changes takes away.
    derivatives = "finite" if "x: Differentiable" in text else None
    return make(derivatives=derivatives)(namespace["f"]).openapi_schema


@pytest.fixture
def compare(tmp_path, capfd):
    """`chainrule diff` of two documents: where they differ, and whether that breaks callers."""

    def run(old, new):
        for name, content in (("old.json", old), ("new.json", new)):
            (tmp_path / name).write_text(json.dumps(content))
        with pytest.raises(SystemExit) as caught:
            main(["diff", str(tmp_path / "old.json"), str(tmp_path / "new.json"), "--json"])
        found = json.loads(capfd.readouterr().out)
        changes = {(change["where"], change["breaks"]) for change in found["changes"]}
        assert found["compatible"] == (not any(breaks for _, breaks in changes))
        assert caught.value.code == int(not found["compatible"])
        return changes

    return run


def test_no_change(compare):
    assert compare(document(OLD), document(OLD)) == set()


@pytest.mark.parametrize(
    ("old", "new", "where", "breaks"),
    [
        ('mode: str = "a"', 'mode: str = "a", more: int = 1', "inputs.more", False),
        ('mode: str = "a",', "mode: str,", "inputs.mode", True),
        ("inner: Inner,", "inner: Inner, more: int,", "inputs.more", True),
        ('    mode: str = "a",\n', "", "inputs.mode", True),
        ('mode: str = "a"', "mode: int = 1", "inputs.mode", True),
        ("w: Array[(None, 3), Float64]", "w: Array[(None, None), Float64]", "inputs.inner.w", False),
        ("w: Array[(None, 3), Float64]", "w: Array[(7, 3), Float64]", "inputs.inner.w", True),
        ("w: Array[(None, 3), Float64]", "w: Array[..., Float64]", "inputs.inner.w", False),
        ("w: Array[(None, 3), Float64]", "v: Array[(None, 3), Float64]", "inputs.inner.w", True),
        ("Array[(2,), Float32]", "Array[(2,), Int8]", "inputs.items.[]", True),
        ("Array[(3,), Float64]], int", "Array[(None,), Float64]], int", "outputs.result_0", True),
        ("Array[(3,), Float64]], int]", "Array[(3,), Float64]], str]", "outputs.result_1", True),
        ("], int]", "], int, float]", "outputs.result_2", False),
        ("Differentiable[Array[(None,), Float64]]", "Array[(None,), Float64]", "inputs.x", True),
        ("w: Array[(None, 3), Float64]", "w: Differentiable[Array[(None, 3), Float64]]",
         "inputs.inner.w", False),
    ],
)  # fmt: skip
def test_single_changes(old, new, where, breaks, compare):
    assert old in OLD
    assert (where, breaks) in compare(document(OLD), document(OLD.replace(old, new)))


def test_endpoints(compare):
    @component
    def plain(x: int) -> int: ...

    old, new = document(OLD), {**document(OLD)}
    new["paths"] = {path: value for path, value in old["paths"].items() if path != "/jacobian"}
    assert compare(old, new) == {("/jacobian", True)}
    assert compare(new, old) == {("/jacobian", False)}


def test_from_the_shell(tmp_path, capfd):
    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(a) for a in arguments])
        return caught.value.code, capfd.readouterr()

    header = HEADER + "import chainrule\n"
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    decorated = OLD.replace("def f", "@chainrule.component\ndef f")
    old.write_text(header + decorated)
    new.write_text(header + decorated.replace('mode: str = "a"', 'mode: str = "a", more: int = 1'))
    code, captured = run("diff", old, new)
    assert code == 0
    assert "inputs.more" in captured.out
    code, captured = run("diff", new, old, "--json")
    assert code == 1
    assert json.loads(captured.out)["compatible"] is False
    assert run("diff", old, old)[0] == 0
    code, captured = run("schema", old)
    (tmp_path / "old.json").write_text(captured.out)
    assert run("diff", tmp_path / "old.json", old)[0] == 0
    (tmp_path / "bad.json").write_text("{}")
    code, captured = run("diff", tmp_path / "bad.json", old)
    assert code == 2
    assert "bad_document" in captured.err
