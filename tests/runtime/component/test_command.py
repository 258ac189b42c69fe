"""Executables as components."""

import os
import stat
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import ComponentError, DefinitionError, InputError, LimitError
from chainrule.runtime import Limits, from_command, load_component

SOLVER = """
import json, sys
source, target = sys.argv[1:]
inputs = json.load(open(source))
json.dump({"y": [inputs["scale"] * v for v in inputs["x"]], "who": inputs["label"] or "nobody"},
          open(target, "w"))
"""
INPUTS = {
    "x": "differentiable float64[n]",
    "scale": {"type": "float64", "default": 2.0},
    "label": "str?",
}
OUTPUTS = {"y": "differentiable float64[n]", "who": "str"}


def script(folder, text, name="solve.py"):
    (folder / name).write_text(textwrap.dedent(text))
    return [sys.executable, name]


def make(folder, text=SOLVER, arguments=("{input}", "{output}"), **options):
    options = {"inputs": INPUTS, "outputs": OUTPUTS, **options}
    return from_command([*script(folder, text), *arguments], folder=folder, **options)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_files_in_files_out(tmp_path, scratch):
    component = make(tmp_path, name="scaler", version="2.0.0")
    result = component.apply({"x": [1.0, 2.0], "label": "me"})
    np.testing.assert_array_equal(result["y"], [2.0, 4.0])
    assert result["who"] == "me"
    assert (component.name, component.version) == ("scaler", "2.0.0")
    assert list(scratch.iterdir()) == []


def test_pipes(tmp_path):
    text = """
    import json, sys
    inputs = json.load(sys.stdin)
    json.dump({"y": inputs["x"], "who": "pipe"}, sys.stdout)
    """
    component = make(tmp_path, text, arguments=())
    assert component.apply({"x": [1.0]})["who"] == "pipe"


def test_npz_is_exact_and_nested(tmp_path):
    text = """
    import json, sys
    import numpy as np
    source, target = sys.argv[1:]
    data = np.load(source)
    rest = json.loads(str(data["_json"]))
    np.savez(target, **{"mesh.points": data["mesh.points"] * 2, "_json": json.dumps({"who": rest["label"]})})
    """
    schema = {"mesh": {"points": "float64[n, 3]"}, "label": "str"}
    outputs = {"mesh": {"points": "float64[n, 3]"}, "who": "str"}
    component = make(tmp_path, text, inputs=schema, outputs=outputs, format="npz")
    points = np.array([[1.0, np.inf, 1e-300], [np.pi, -0.0, 5.0]])
    result = component.apply({"mesh": {"points": points}, "label": "a"})
    np.testing.assert_array_equal(result["mesh"]["points"], 2 * points)
    assert result["who"] == "a"


def test_finite_differences_of_a_command(tmp_path):
    component = make(tmp_path, derivatives="finite")
    x = {"x": [1.0, 2.0], "scale": 3.0}
    blocks = component.jacobian(x, ["x"], ["y"])
    np.testing.assert_allclose(blocks["y"]["x"], 3 * np.eye(2), rtol=1e-6, atol=1e-8)


def test_commands_for_derivatives(tmp_path):
    script(
        tmp_path,
        """
        import json, sys
        payload = json.load(open(sys.argv[1]))
        assert payload["vjp_inputs"] == ["x"] and sys.argv[3] == "vector_jacobian_product"
        scale = payload["inputs"]["scale"]
        pulled = [scale * v for v in payload["cotangent_vector"]["y"]]
        json.dump({"x": pulled}, open(sys.argv[2], "w"))
        """,
        "vjp.py",
    )
    command = [sys.executable, "vjp.py", "{input}", "{output}", "{endpoint}"]
    component = make(tmp_path, endpoints={"vector_jacobian_product": command})
    x = {"x": [1.0, 2.0]}
    pulled = component.vector_jacobian_product(x, ["x"], ["y"], {"y": [1.0, 0.5]})
    np.testing.assert_array_equal(pulled["x"], [2.0, 1.0])
    assert component.capabilities["jacobian"].status == "derived"
    with pytest.raises(DefinitionError, match="nowhere"):
        make(tmp_path, endpoints={"nowhere": command})


@pytest.mark.parametrize(
    ("text", "code", "fragment"),
    [
        ("import sys; sys.exit('mesh is empty')", "command_failed", "mesh is empty"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "command_failed", "-11"),
        ("pass", "command_no_output", "no result"),
        ("import sys; open(sys.argv[2], 'w').write('not json')", "command_bad_output", "not json"),
        ("import sys; open(sys.argv[2], 'w').write('{}')", "bad_output", "y"),
        ("import time; time.sleep(60)", "command_timeout", "2"),
    ],
)
def test_failures_of_the_command(tmp_path, scratch, text, code, fragment):
    component = make(tmp_path, text, timeout_s=2 if "sleep" in text else None)
    with pytest.raises(ComponentError) as caught:
        component.apply({"x": [1.0]})
    assert caught.value.code == code
    assert fragment in str(caught.value)
    assert list(scratch.iterdir()) == []


def test_large_complaints_are_cut(tmp_path):
    component = make(tmp_path, "import sys; sys.stderr.write('x' * 100_000 + 'END'); sys.exit(3)")
    with pytest.raises(ComponentError) as caught:
        component.apply({"x": [1.0]})
    assert len(str(caught.value)) < 3000
    assert "END" in str(caught.value)
    assert caught.value.details["exit_code"] == 3


def test_results_beyond_the_limits_are_not_read(tmp_path):
    component = make(tmp_path, config={"limits": Limits(max_body_bytes=10)})
    with pytest.raises(LimitError):
        component.apply({"x": [1.0]})


def test_missing_executables(tmp_path):
    for command in (["./none"], ["chainrule-no-such-program"], []):
        with pytest.raises(DefinitionError) as caught:
            from_command(command or [""], inputs=INPUTS, outputs=OUTPUTS, folder=tmp_path)
        assert caught.value.code == "command_missing"


def test_an_executable_beside_the_description_that_is_named_without_a_path(tmp_path):
    (tmp_path / "chainrule-solve").write_text("#!/bin/sh\n")
    with pytest.raises(DefinitionError, match=r"on the PATH\. .* write './chainrule-solve'"):
        from_command(["chainrule-solve"], inputs=INPUTS, outputs=OUTPUTS, folder=tmp_path)


def test_environment_and_folder(tmp_path):
    text = """
    import json, os, sys
    json.dump({"y": [], "who": os.environ["COLOUR"] + os.path.basename(os.getcwd())},
              open(sys.argv[2], "w"))
    """
    component = make(tmp_path, text, environment={"COLOUR": "red"})
    assert component.apply({"x": []})["who"] == "red" + tmp_path.name
    assert "COLOUR" not in os.environ


def test_content_hash_follows_the_script(tmp_path):
    first = make(tmp_path).content_hash
    assert make(tmp_path).content_hash == first
    assert make(tmp_path, SOLVER + "\n# changed").content_hash != first
    assert make(tmp_path, inputs={**INPUTS, "more": "int?"}).content_hash != first


def test_the_folder_in_the_arguments(tmp_path):
    (tmp_path / "solve").write_text(f"#!{sys.executable}\n{textwrap.dedent(SOLVER)}")
    (tmp_path / "solve").chmod(0o700)
    options = {"inputs": INPUTS, "outputs": OUTPUTS, "folder": tmp_path}

    def make_both():
        solve = ["{folder}/solve", "{input}", "{output}"]
        script(tmp_path, SOLVER)
        return [
            from_command(solve, **options),
            from_command([sys.executable, "{folder}/solve.py", *solve[1:]], **options),
        ]

    before = make_both()
    for component in before:
        assert component.apply({"x": [1.0]})["y"].tolist() == [2.0]
    (tmp_path / "solve").write_text("changed")
    assert make_both()[0].content_hash != before[0].content_hash
    assert make_both()[1].content_hash == before[1].content_hash


def test_component_yaml(tmp_path):
    (tmp_path / "solve").write_text(f"#!{sys.executable}\n{SOLVER}")
    (tmp_path / "solve").chmod(stat.S_IRWXU)
    (tmp_path / "component.yaml").write_text(
        """
name: scaler
version: 1.0.0
command: [./solve, "{input}", "{output}"]
inputs:
  x: differentiable float64[n]
  scale: {type: float64, default: 2.0, description: factor}
  label: str?
outputs: {y: "differentiable float64[n]", who: str}
derivatives: finite
"""
    )
    component = load_component(tmp_path)
    assert component.apply({"x": [2.0]})["who"] == "nobody"
    assert component.input_schema.model_fields["scale"].description == "factor"
    assert str(component.capabilities["jacobian"]) == "derived (finite differences)"


@pytest.mark.parametrize(
    "text",
    [
        "command: [ls]",
        "- a list",
        "command: [ls]\ninputs: {x: int}\noutputs: {y: int}\ncolour: red",
        "{:",
    ],
)
def test_bad_component_yaml(tmp_path, text):
    (tmp_path / "component.yaml").write_text(text)
    with pytest.raises(DefinitionError) as caught:
        load_component(tmp_path)
    assert caught.value.code == "bad_project_file"


@pytest.mark.parametrize(
    "declaration",
    [
        {"x": "float64[n"},
        {"x": "float13[3]"},
        {"x": 3},
        {"x": {"type": "int", "colour": 1}},
        {"x y": "int"},
        {"x": "float64[a-b]"},
        {},
        "int",
        {"inner": {"y": "float64["}},
    ],
)
def test_bad_declarations(declaration):
    with pytest.raises(DefinitionError):
        from_command([sys.executable], inputs=declaration, outputs=OUTPUTS)


def test_declared_types():
    inputs = {
        "vector": {"type": "float32[3]", "description": "a vector"},
        "anything": "float64[...]",
        "open": "int64[?, 2]",
        "flag": "bool",
        "name": {"type": "str", "default": "x"},
        "optional": "float64[2]?",
    }
    component = from_command([sys.executable], inputs=inputs, outputs={"y": "float"})
    fields = component.input_schema.model_fields
    assert str(fields["vector"].annotation.spec) == "f32[3]"
    assert fields["anything"].annotation.spec.shape is None
    assert fields["open"].annotation.spec.shape == (None, 2)
    assert fields["name"].default == "x"
    assert not fields["optional"].is_required()
    with pytest.raises(InputError):
        component.apply({"vector": [1, 2]})


def test_json_commands_get_plain_lists(tmp_path):
    text = """
    import json, sys
    inputs = json.load(open(sys.argv[1]))
    assert inputs == {"x": [1.0, 2.0], "scale": 2.0, "label": None}, inputs
    json.dump({"y": inputs["x"], "who": "ok"}, open(sys.argv[2], "w"))
    """
    assert make(tmp_path, text).apply({"x": [1.0, 2.0]})["who"] == "ok"
    assert Path(tmp_path / "solve.py").exists()
