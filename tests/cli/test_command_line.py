"""`chainrule …`: results on standard output, everything else on standard error, documented exit codes."""

import json
import shlex
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from chainrule._codec import decode_body
from chainrule.cli import main
from chainrule.cli.internal import COMMANDS, find_command, make_parser

COMPONENT = """
import os, sys
import numpy as np
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float64
from tesseract_core.runtime.experimental import log_metric

print("loading")

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]
    mode: str = "plain"
    inner: dict[str, float] = {}

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]

def apply(inputs):
    print("to stdout")
    os.write(1, b"to descriptor 1")
    if inputs.mode == "raise":
        raise ValueError("mesh is empty")
    if inputs.mode == "exit":
        sys.exit(0)
    if inputs.mode == "wrong":
        return {"z": 1}
    if inputs.mode == "log":
        log_metric("loss", 1.0)
    return {"y": inputs.x + sum(inputs.inner.values())}

def jacobian(inputs, jac_inputs, jac_outputs):
    return {"y": {"x": np.eye(inputs.x.size)}}
"""
PAYLOAD = '{"inputs": {"x": [1.0, 2.0]}}'


@pytest.fixture
def component(tmp_path):
    file = tmp_path / "probe" / "tesseract_api.py"
    file.parent.mkdir()
    file.write_text(textwrap.dedent(COMPONENT))
    return file


@pytest.fixture
def run(capfdbinary, tmp_path, monkeypatch):
    """Run the command line in this process; gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capfdbinary.readouterr()
        return caught.value.code, captured.out, captured.err.decode()

    return call


def y(out):
    return decode_body(out)["y"].tolist()


def test_apply_writes_only_the_result_to_stdout(run, component):
    code, out, err = run("apply", component, PAYLOAD)
    assert code == 0
    assert y(out) == [1.0, 2.0]
    for text in ("loading", "to stdout", "to descriptor 1"):
        assert text in err
        assert text.encode() not in out


def test_payloads_from_everywhere(run, component, tmp_path, monkeypatch):
    (tmp_path / "payload.json").write_text(PAYLOAD)
    assert y(run("apply", component, "@payload.json")[1]) == [1.0, 2.0]
    monkeypatch.setattr(sys, "stdin", open(tmp_path / "payload.json"))  # noqa: SIM115
    assert y(run("apply", component, "-")[1]) == [1.0, 2.0]
    sys.stdin.close()
    assert y(run("apply", component, "--set", "x=[3, 4]")[1]) == [3.0, 4.0]
    code, out, _ = run(
        "apply", component, PAYLOAD, "--set", "inner.a=1.5", "-s", "inner.{b.c}=1", "-s", "x.[0]=5"
    )
    assert (code, y(out)) == (0, [7.5, 4.5])


def test_frames_payloads(run, component, tmp_path):
    from chainrule._codec import FRAMES_MEDIA_TYPE, encode_body

    pieces = encode_body({"inputs": {"x": np.arange(3.0)}}, format=FRAMES_MEDIA_TYPE)
    (tmp_path / "payload.frames").write_bytes(b"".join(pieces))
    assert y(run("apply", component, "@payload.frames")[1]) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["jvp", "jacobian-vector-product"])
def test_derivatives_by_short_and_long_names(run, component, name):
    payload = {
        "inputs": {"x": [1.0, 2.0]},
        "jvp_inputs": ["x"],
        "jvp_outputs": ["y"],
        "tangent_vector": {"x": [1.0, 0.0]},
    }
    code, out, _ = run("call", name, component, json.dumps(payload))
    assert (code, y(out)) == (0, [1.0, 0.0])


@pytest.mark.parametrize("name", ["hvp", "hessian-vector-product"])
def test_second_derivatives_by_differencing_on_request(run, component, name):
    component.write_text(
        component.read_text().replace("np.eye(inputs.x.size)", "np.diag(inputs.x)")
    )
    payload = {
        "inputs": {"x": [1.0, 2.0]},
        "hvp_inputs": ["x"],
        "hvp_outputs": ["y"],
        "cotangent_vector": {"y": [1.0, 3.0]},
        "tangent_vector": {"x": [5.0, 7.0]},
    }
    code, _, err = run("call", name, component, json.dumps(payload))
    assert code != 0
    assert "hessian_vector_product" in err
    code, out, _ = run("call", name, component, json.dumps(payload), "--derive-hvp")
    assert code == 0
    np.testing.assert_allclose(decode_body(out)["x"], [5.0, 21.0], rtol=1e-7)


def test_value_with_gradient_and_batches(run, component):
    request = {"inputs": {"x": [1.0, 2.0]}, "vjp_inputs": ["x"], "vjp_outputs": ["y"]}
    payload = request | {"cotangent_vector": {"y": [3.0, 4.0]}}
    code, out, _ = run("call", "value-and-vjp", component, json.dumps(payload))
    assert code == 0
    found = decode_body(out)
    assert found["outputs"]["y"].tolist() == [1.0, 2.0]
    assert found["gradient"]["x"].tolist() == [3.0, 4.0]
    payload = request | {"cotangent_vector": {"y": [[3.0, 4.0]] * 3}, "batched": True}
    code, out, _ = run("call", "vjp", component, json.dumps(payload))
    assert code == 0
    assert decode_body(out)["x"].tolist() == [[3.0, 4.0]] * 3


def test_jacobian_and_vjp(run, component):
    payload = {"inputs": {"x": [1.0]}, "jac_inputs": ["x"], "jac_outputs": ["y"]}
    code, out, _ = run("call", "jacobian", component, json.dumps(payload))
    assert code == 0
    assert decode_body(out)["y"]["x"].tolist() == [[1.0]]
    payload = {
        "inputs": {"x": [1.0]},
        "vjp_inputs": ["x"],
        "vjp_outputs": ["y"],
        "cotangent_vector": {"y": [2.0]},
    }
    code, out, _ = run("call", "vjp", component, json.dumps(payload))
    assert decode_body(out)["x"].tolist() == [2.0]


def test_formats_and_files(run, component, tmp_path):
    code, out, _ = run("apply", component, PAYLOAD, "-f", "json+base64", "--compression", "lz4")
    assert json.loads(out)["y"]["data"]["compression"] == "lz4"
    assert y(out) == [1.0, 2.0]
    folder = tmp_path / "results"
    code, out, _ = run("apply", component, PAYLOAD, "-f", "json+binref", "-o", folder)
    name, _, offset = json.loads(out)["y"]["data"]["buffer"].partition(":")
    assert np.fromfile(folder / name, offset=int(offset)).tolist() == [1.0, 2.0]
    code, out, _ = run("apply", component, PAYLOAD, "-o", folder, "--output-file", "result.json")
    assert (code, out) == (0, b"")
    assert y((folder / "result.json").read_bytes()) == [1.0, 2.0]
    code, _, _ = run("apply", component, PAYLOAD, "-o", folder, "--output-file", "../outside.json")
    assert code == 2
    assert not (tmp_path / "outside.json").exists()
    assert not list(folder.glob(".*"))


def test_nothing_is_left_behind(run, component, tmp_path):
    run("apply", component, PAYLOAD)
    assert [path.name for path in tmp_path.iterdir()] == ["probe"]
    assert [path.name for path in component.parent.iterdir()] == ["tesseract_api.py"]
    run("apply", component, PAYLOAD, "--set", "mode=log")
    assert (tmp_path / "logs" / "metrics.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "fragment"),
    [
        (["--set", "mode=raise"], 1, "mesh is empty"),
        (["--set", "mode=exit"], 1, "component_exited"),
        (["--set", "mode=wrong"], 1, "bad_output"),
        (["--set", "odd=1"], 2, "odd"),
        (["--set", "x=text"], 2, "array_non_numeric"),
        (["--set", "nothing"], 2, "bad_assignment"),
        (["--set", "=1"], 2, "bad_assignment"),
        (["--set", "x.[9]=1"], 2, "bad_assignment"),
        (["--set", "x..y=1"], 2, "path_malformed"),
        (["--output-format", "xml"], 2, "bad_setting"),
        (["--nonsense"], 2, "--nonsense"),
        (["--input-path", "none", "--set", "mode=raise"], 1, "mesh is empty"),
    ],
)
def test_exit_codes_of_apply(run, component, arguments, code, fragment):
    result, out, err = run("apply", component, PAYLOAD, *arguments)
    assert (result, out) == (code, b"")
    assert fragment in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("payload", "fragment"),
    [
        ("{", "json_invalid"),
        ("[]", "invalid_input"),
        ("3", "invalid_input"),
        ("{}", "inputs"),
        ('{"x": [1.0]}', "inputs"),
        ('{"inputs": {"x": [1.0]}, "inputs": {}}', "duplicate_key"),
        ("@missing.json", "payload_missing"),
        ("missing.json", "write '@missing.json'"),
        ("@.", "payload_missing"),
        ("@image.png", "The payload file 'image.png': The body is not valid JSON"),
        ("x=[1.0]", "`--set x=[1.0]`"),
        ("@broken.frames", "frames"),
        ('{"inputs": {"x": {"shape": [1], "dtype": "float64",'
         ' "data": {"encoding": "binref", "buffer": "/etc/passwd"}}}}', "path_not_granted"),
    ],
)  # fmt: skip
def test_bad_payloads(run, component, tmp_path, payload, fragment):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "broken.frames").write_bytes(b"broken")
    code, out, err = run("apply", component, payload)
    assert (code, out) == (2, b"")
    assert fragment in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["apply", "record", "check-gradients"])
def test_a_value_that_is_not_json_is_explained(run, component, command):
    arguments = [component, "apply"] if command == "record" else [component]
    code, out, err = run(command, *arguments, "--set", "mode=plain", "--set", "x=1.0,2.0")
    assert (code, out) == (2, b"")
    assert "found text. `--set x=` takes JSON; '1.0,2.0' is not, and counts as text." in err


def test_options_before_the_command(run, component):
    code, out, err = run("--json", "apply", component, PAYLOAD)
    assert (code, out) == (2, b"")
    assert "options follow the command: `chainrule COMMAND … --json`" in err


def test_a_component_before_the_endpoint(run, component):
    code, out, err = run("call", component, "jacobian", PAYLOAD)
    assert (code, out) == (2, b"")
    assert f"`chainrule call jacobian {component}`" in err


@pytest.mark.parametrize("address", ["localhost:8000", "127.0.0.1:8000/c/heat"])
def test_an_address_without_its_scheme(run, address):
    code, out, err = run("check", address)
    assert (code, out) == (2, b"")
    assert f"http://{address}\n" in err


def test_huge_payloads_are_not_read(run, component, tmp_path):
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse: takes no disk
    code, _, err = run("apply", component, "@huge.json")
    assert code == 2
    assert "body_too_large" in err


def test_errors_for_machines(run, component):
    code, out, err = run("apply", component, '{"inputs": {"x": [[1.0]], "odd": 2}}', "--json")
    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, out) == (2, b"")
    assert error["code"] == "array_dimensionality_mismatch"
    assert error["path"] == "x"
    assert error["details"]["count"] == 2


def test_missing_and_broken_components(run, tmp_path):
    code, _, err = run("apply", "nowhere.py", PAYLOAD)
    assert code == 2
    assert "component_missing" in err
    code, _, err = run("apply", "nowhere.py", "@missing.json")
    assert code == 2
    assert "component_missing" in err
    (tmp_path / "unfinished.py").write_text("x = 1\ndef broken(:\n")
    for payload in (PAYLOAD, "@missing.json"):
        code, out, err = run("apply", "unfinished.py", payload)
        assert (code, out) == (1, b"")
        assert "unfinished.py:2: SyntaxError" in err
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')")
    code, _, err = run("check", "broken.py")
    assert code == 1
    assert "no licence" in err
    assert "Traceback" not in err


def test_endpoints_that_are_not_there(run, component):
    code, _, err = run(
        "call", "abstract-eval", component, '{"inputs": {"x": {"shape": [2], "dtype": "float64"}}}'
    )
    assert code == 2
    assert "endpoint_missing" in err


def test_check_inspect_schema(run, component):
    code, out, _ = run("check", component)
    assert code == 0
    assert "derived (jacobian)" in out.decode()
    code, out, _ = run("check", component, "--json")
    assert json.loads(out)["endpoints"]["apply"] == "native"
    code, out, _ = run("inspect", component)
    assert "f64[?] differentiable" in out.decode()
    facts = json.loads(run("inspect", component, "--json")[1])
    assert facts["differentiable_inputs"] == {"x": "f64[?]"}
    document = json.loads(run("schema", component)[1])
    assert document["info"]["title"] == "probe"
    assert json.loads(run("openapi-schema", component)[1]) == document
    side = json.loads(run("schema", component, "--part", "inputs")[1])
    assert side["$ref"].endswith("Apply_InputSchema")


def test_inspect_shows_every_leaf_as_a_scientist_writes_it(run, tmp_path):
    (tmp_path / "nested.py").write_text(
        "import chainrule\n"
        "from pydantic import BaseModel, Field\n"
        "from chainrule.runtime import Array, Differentiable, Float32, Float64\n"
        "class Section(BaseModel):\n"
        "    width: Differentiable[Float64] = Field(description='of the beam', gt=0)\n"
        "@chainrule.component\n"
        "def nested(section: Section, parts: list[Array[('n', 3), Float32]], k: int | str = 3) -> float:\n"
        "    return 1.0\n"
    )
    facts = json.loads(run("inspect", "nested.py", "--json")[1])
    assert {path: field["type"] for path, field in facts["inputs"].items()} == {
        "section.width": "f64[] differentiable",
        "parts.[]": "f32[n,3]",
        "k": "integer | string",
    }
    assert facts["inputs"]["section.width"]["description"] == "of the beam"
    assert [field["required"] for field in facts["inputs"].values()] == [True, True, False]
    assert facts["inputs"]["section.width"]["bounds"] == "> 0"
    assert facts["inputs"]["k"]["default"] == 3
    table = run("inspect", "nested.py")[1].decode()
    assert all(said in table for said in ("of the beam", "> 0", "default 3"))
    assert b"nested is fine" in run("check", "nested.py")[1]


@pytest.mark.parametrize(
    ("command", "payload", "meant"),
    [
        ("apply", {"x": [1.0]}, {"inputs": {"x": [1.0]}}),
        ("check-gradients", {"x": [1.0]}, {"inputs": {"x": [1.0]}}),
        (
            "call jacobian",
            {"x": [1.0], "jac_inputs": ["x"], "jac_outputs": ["y"]},
            {"inputs": {"x": [1.0]}, "jac_inputs": ["x"], "jac_outputs": ["y"]},
        ),
        ("apply", {"x": list(range(1000))}, {"inputs": {"x": "…"}}),
    ],
)
def test_inputs_that_are_not_under_inputs(run, component, command, payload, meant):
    code, _, err = run(*command.split(), component, json.dumps(payload))
    assert code == 2
    assert "[missing_field]" in err
    shown = err.partition("under `inputs`: '")[2].partition("'")[0]
    assert json.loads(shown) == meant


def test_no_payload_is_no_inputs(run, component):
    code, _, err = run("apply", component)
    assert code == 2
    assert "'x': Field required" in err


def test_a_command_that_needs_the_files(run):
    code, _, err = run("serve", "http://127.0.0.1:1")
    assert code == 2
    assert "[component_not_here]" in err


def test_a_server_that_is_not_there_is_no_answer(run, tmp_path):
    case = tmp_path / "test_apply.json"
    code, _, err = run("record", "http://127.0.0.1:1", "apply", PAYLOAD, "--output", case)
    assert code != 0
    assert "[unreachable]" in err
    case.write_text('{"endpoint": "apply", "expected_outputs": {}}')
    code, _, err = run("test", "http://127.0.0.1:1", case)
    assert code != 0
    assert "[unreachable]" in err


def test_an_endpoint_that_is_not_there_is_not_recorded(run, component, tmp_path):
    case = tmp_path / "test_hessian.json"
    code, _, err = run("record", component, "hessian", PAYLOAD, "--output", case)
    assert code != 0
    assert "[endpoint_missing]" in err
    assert not case.exists()


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [("serve", "starlette", "serve"), ("order", "jax", "jax"), ("mcp", "mcp_types", "mcp")],
)
def test_packages_that_are_not_installed(component, command, package, extra):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from chainrule.cli import main; main([{command!r}, {str(component) + ':apply'!r}, '[1.0]'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"pip install 'chainrule[{extra}]'" in done.stderr
    assert "[missing_dependency]" in done.stderr
    assert "Traceback" not in done.stderr


def test_profiles_and_traces_go_to_stderr(component, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "chainrule",
            "apply",
            component,
            PAYLOAD,
            "--profiling",
            "--tracing",
        ],
        capture_output=True,
        cwd=tmp_path,
        timeout=300,
        check=True,
    )
    assert y(done.stdout) == [1.0, 2.0]
    assert b"Profiling Statistics" in done.stderr
    assert b"apply called with" in done.stderr


def test_overview_and_usage_errors(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(name in out.decode() for name in COMMANDS)
    assert run("--version")[1].decode().strip()
    code, out, err = run()
    assert (code, out) == (2, b"")
    code, _, err = run("aply")
    assert code == 2
    assert "chainrule apply" in err
    for name in COMMANDS:
        code, out, _ = run(*name.split(), "--help")
        assert code == 0
        assert b"--json" in out
        assert COMMANDS[name].example in out.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_parse(name, monkeypatch):
    program, *words = shlex.split(COMMANDS[name].example.partition(" > ")[0])
    assert program == "chainrule"
    assert find_command(words)[0] == name
    parser = make_parser(name)
    monkeypatch.setattr(parser, "error", pytest.fail)
    parser.parse_intermixed_args(find_command(words)[1])


def test_the_overview_imports_next_to_nothing():
    code = "import sys\nfrom chainrule.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass\n"
    check = (
        "print([m for m in ('numpy', 'pydantic', 'argparse', 'rich', 'jax') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + check],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_call_does_not_load_what_derivatives_need(tmp_path):
    file = tmp_path / "double.py"
    file.write_text(
        "from pydantic import BaseModel\n"
        "from chainrule.runtime import Array, Float64\n"
        "class InputSchema(BaseModel):\n    x: Array[(), Float64]\n"
        "class OutputSchema(BaseModel):\n    y: Array[(), Float64]\n"
        "def apply(inputs):\n    return OutputSchema(y=2 * inputs.x)\n"
    )
    payload = '{"inputs": {"x": 1.0}}'
    code = (
        "import sys\nfrom chainrule.cli import main\n"
        f"try:\n    main(['apply', {str(file)!r}, {payload!r}])\nexcept SystemExit: pass\n"
        "print('\\n', 'chainrule.runtime._derivatives' in sys.modules, 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split()[-2:] == ["False", "False"]


@pytest.mark.parametrize("template", ["function", "module", "jax", "torch", "command"])
def test_templates_work_as_written(run, tmp_path, template):
    if template == "torch":
        pytest.importorskip("torch")
    folder = tmp_path / "new"
    code, out, _ = run("init", folder, "--template", template, "--name", "my-part")
    assert code == 0
    written = [Path(line) for line in out.decode().splitlines()]
    assert all(path.is_file() for path in written)
    code, out, err = run("check", folder)
    assert code == 0, err
    assert "my-part" in out.decode()
    given = ["--set", "x=[1.0, 2.0]"] + (["--set", "a=2"] if template == "module" else [])
    code, out, err = run("apply", folder, *given)
    assert code == 0, err
    before = [path.read_bytes() for path in written]
    code, _, err = run("init", folder, "--template", template)
    assert code == 2
    assert "exists already" in err
    assert [path.read_bytes() for path in written] == before


def test_init_mistakes(run, tmp_path):
    assert run("init", tmp_path / "new", "--template", "cobol")[0] == 2
    code, _, err = run("init", tmp_path / "new", "--name", "a b")
    assert code == 2
    assert "bad_name" in err
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert run("init", tmp_path / "file" / "below", "--name", "a")[0] == 1


def test_gradient_checks(run, tmp_path):
    run("init", tmp_path / "good", "--template", "module", "--name", "good")
    given = ["--set", "a=2", "--set", "x=[1.0, 2.0]"]
    code, out, err = run("check-gradients", tmp_path / "good", *given)
    assert code == 0, err
    assert "jacobian" in out.decode()
    file = tmp_path / "good" / "tesseract_api.py"
    file.write_text(file.read_text().replace("inputs.a * np.eye", "3 * np.eye"))
    code, out, _ = run("check-gradients", tmp_path / "good", *given, "--json", "--eps-for", "x=1e-4",
                       "--input-paths", "x")  # fmt: skip
    assert code == 1
    assert not json.loads(out)["passed"]
    code, _, err = run("check-gradients", tmp_path / "good", *given, "--eps-for", "x")
    assert code == 2


def test_record_and_test(run, component, tmp_path):
    code, out, _ = run("record", component, "apply", PAYLOAD)
    assert code == 0
    case = Path(out.decode().strip())
    assert case.name == "test_apply_1.json"
    assert run("test", component)[0] == 0
    assert run("record", component, "apply", PAYLOAD, "--output", case)[0] == 2
    text = case.read_text()
    case.write_text(text.replace("2.0", "2.5", 1) if "2.0" in text else text.replace("1.0", "1.5"))
    code, out, _ = run("test", component, "--json")
    assert code == 1
    (result,) = json.loads(out).values()
    assert result["status"] == "failed"
    case.write_text("{}")
    code, _, err = run("test", component, case)
    assert code == 2
    assert "bad_test_case" in err
    case.unlink()
    assert run("test", component)[0] == 2


READS_A_FILE = """
from pydantic import BaseModel
from tesseract_core.runtime.experimental import InputPath

class InputSchema(BaseModel):
    file: InputPath

class OutputSchema(BaseModel):
    text: str

def apply(inputs):
    return OutputSchema(text=inputs.file.read_text())
"""


def test_tests_may_name_files_of_the_component(run, tmp_path):
    for folder in ("test_cases", "input_data", "other"):
        (tmp_path / "reader" / folder).mkdir(parents=True)
    reader = tmp_path / "reader"
    (reader / "tesseract_api.py").write_text(READS_A_FILE)
    (reader / "input_data" / "a.txt").write_text("kept")
    case = {"endpoint": "apply", "payload": {"inputs": {"file": "a.txt"}}}
    (reader / "test_cases" / "test_a.json").write_text(
        json.dumps({**case, "expected_outputs": {"text": "kept"}})
    )
    assert run("test", reader)[0] == 0
    assert run("test", reader, "--input-path", reader / "other")[0] == 1


WRITES_A_FILE = """
from pydantic import BaseModel
from tesseract_core.runtime.config import get_config
from tesseract_core.runtime.experimental import OutputPath

class InputSchema(BaseModel):
    name: str

class OutputSchema(BaseModel):
    file: OutputPath

def apply(inputs):
    file = get_config().output_path / inputs.name
    file.mkdir()
    return OutputSchema(file=file)
"""


def test_tests_leave_no_files(run, tmp_path, monkeypatch):
    writer = tmp_path / "writer"
    (writer / "test_cases").mkdir(parents=True)
    (writer / "tesseract_api.py").write_text(WRITES_A_FILE)
    case = {"endpoint": "apply", "payload": {"inputs": {"name": "made"}}}
    (writer / "test_cases" / "test_a.json").write_text(
        json.dumps({**case, "expected_outputs": {"file": "made"}})
    )
    monkeypatch.chdir(writer)
    assert [run("test", writer)[0], run("test", writer)[0]] == [0, 0]
    assert not (writer / "made").exists()


def test_schemas_of_project_files(run):
    code, out, _ = run("schema", "--config", "tesseract_config.yaml")
    schema = json.loads(out)
    assert (code, schema["required"]) == (0, ["name"])
    assert "build_config" in schema["properties"]
    code, out, _ = run("schema", "--config")
    assert "build" in json.loads(out)["properties"]
    code, _, err = run("schema")
    assert code == 2
    assert "--config" in err


def test_a_failing_call_is_recorded_only_on_request(run, component, tmp_path):
    misspelled = '{"inputs": {"xx": [1.0]}}'
    code, out, err = run("record", component, "apply", misspelled, "--output", "case.json")
    assert (code, out) == (2, b"")
    assert "'xx'" in err
    assert not (tmp_path / "case.json").exists()
    code, *_ = run(
        "record", component, "apply", misspelled, "--output", "case.json", "--expect-error"
    )
    assert code == 0
    assert run("test", component, "case.json")[0] == 0
    code, *_ = run("record", component, "apply", PAYLOAD, "--output", "new.json", "--expect-error")
    assert code == 2
    assert not (tmp_path / "new.json").exists()


def test_a_file_name_without_its_at_sign(run, component, tmp_path):
    (tmp_path / "p.json").write_text(PAYLOAD)
    code, _, err = run("apply", component, "p.json")
    assert code == 2
    assert "'@p.json'" in err


def test_settings_may_be_numbers_that_json_has_not(run, component):
    code, out, err = run("apply", component, "--set", "x=[NaN, Infinity, -Infinity, 1]")
    assert code == 0, err
    assert np.array_equal(decode_body(out)["y"], [np.nan, np.inf, -np.inf, 1.0], equal_nan=True)


def test_a_document_that_is_not_there(run, component):
    code, _, err = run("diff", component, "missing.json")
    assert code == 2
    assert "component_missing" in err


def test_a_dashboard_on_a_port_that_is_taken(run):
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run("dashboard", "http://127.0.0.1:1", "--port", port)
    assert code != 0
    assert "address_in_use" in err
    assert "--port 0" in err
    code, _, err = run("dashboard", "http://127.0.0.1:1", "--port", 70000)
    assert code != 0
    assert "bad_address" in err


def test_groups_of_commands(run):
    code, out, _ = run("job", "--help")
    assert code == 0
    assert b"job cancel" in out
    assert b"image" not in out
    code, out, err = run("image")
    assert (code, out) == (2, b"")
    assert "image build" in err
    code, _, err = run("job", "lst")
    assert code == 2
    assert "`chainrule job list`" in err


def test_old_names_work_and_name_the_new_ones(run, component):
    payload = json.dumps(
        {
            "inputs": {"x": [1.0, 2.0]},
            "jvp_inputs": ["x"],
            "jvp_outputs": ["y"],
            "tangent_vector": {"x": [1.0, 0.0]},
        }
    )
    code, out, err = run("jvp", component, payload)
    assert (code, y(out)) == (0, [1.0, 0.0])
    assert "`chainrule call jvp`" in err
    code, _, err = run("logs", "http://127.0.0.1:1", "job")
    assert code != 0
    assert "`chainrule job logs`" in err
    code, _, err = run("jobs", "http://127.0.0.1:1", "--json")
    assert code != 0
    assert json.loads(err)["error"]["code"]  # programs read the error, and nothing else


def test_an_endpoint_that_no_component_has(run, component):
    code, _, err = run("call", "jvpp", component, PAYLOAD)
    assert code != 0
    assert "jvpp" in err
