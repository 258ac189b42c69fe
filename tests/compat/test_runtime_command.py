"""`chainrule-tesseract-runtime` beside the real command: same output, files, flags and exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chainrule.compat.tesseract_core import Tesseract
from chainrule.compat.tesseract_core.runtime._main import main, make_parser

HERE = Path(__file__).parent
SCALING = HERE / "programs" / "scaling"
INPUTS = {"part": {"v": [0.0, 0.5, 2.0], "s": 3.0}, "offsets": [1.0]}
PAYLOAD = json.dumps({"inputs": INPUTS})
JACOBIAN = json.dumps({"inputs": INPUTS, "jac_inputs": ["part.v"], "jac_outputs": ["y"]})
COTANGENT = {"vjp_inputs": ["part.v"], "vjp_outputs": ["z"], "cotangent_vector": {"z": 1.0}}
SHAPES = {"v": {"shape": [3], "dtype": "float64"}, "s": {"shape": [], "dtype": "float64"}}
ENCODED = {"buffer": "AAAAAAAA8D8AAAAAAAAAQA==", "encoding": "base64"}
BASE64 = {"object_type": "array", "shape": [2], "dtype": "float64", "data": ENCODED}
TEST = (SCALING / "test_cases/test_apply.json").read_text()
WRONG = json.dumps({**json.loads(TEST), "expected_outputs": {"y": [0.0], "z": 0.0, "label": "no"}})
REFUSAL = (SCALING / "test_cases/test_refusal.json").read_text()
# The ancestor checks gradients outside of any run, where a component cannot log.
SILENT = re.sub(r"\n    (log_\w+\(.*|print\(.*)", "", (SCALING / "tesseract_api.py").read_text())
DEFAULTED = (
    (SCALING / "tesseract_api.py")
    .read_text()
    .replace(
        "    label: str\n",
        '    label: str\n    note: str = "none"\n    more: dict[str, Part] = {}\n',
    )
)
IS_DEFAULTED = {"env": {"TESSERACT_API_PATH": "more.py"}, "files": {"more.py": DEFAULTED}}
IS_SILENT = {"env": {"TESSERACT_API_PATH": "silent.py"}, "files": {"silent.py": SILENT}}


def variables(**values):
    return {"env": {f"TESSERACT_{name}": value for name, value in values.items()}}


CASES = {
    "no arguments": ([], {}),
    "help": (["--help"], {}),
    "help of an endpoint": (["apply", "-h"], {}),
    "help of check-gradients": (["check-gradients", "-h"], {}),
    "help of serve": (["serve", "-h"], {}),
    "unknown command": (["aply", PAYLOAD], {}),
    "unknown flag": (["--nonsense", "apply", PAYLOAD], {}),
    "impossible format": (["--output-format", "xml", "apply", PAYLOAD], {}),
    "no payload": (["apply"], {}),
    "two payloads": (["apply", PAYLOAD, PAYLOAD], {}),
    "apply": (["apply", PAYLOAD], {}),
    "jacobian": (["jacobian", JACOBIAN], {}),
    "vjp": (["vector-jacobian-product", json.dumps({"inputs": INPUTS, **COTANGENT})], {}),
    "abstract-eval": (["abstract-eval", json.dumps({"inputs": {"part": SHAPES}})], {}),
    "health": (["health"], {}),
    "check": (["check"], {}),
    "test": (["test", TEST], {}),
    "test without defaults": (["test", TEST], IS_DEFAULTED),
    "refusal": (["test", REFUSAL], {}),
    "base64": (["--output-format", "json+base64", "apply", PAYLOAD], {}),
    "lz4": (
        ["--output-format", "json+base64", "--compression", "lz4", "jacobian", JACOBIAN],
        {},
    ),
    "binref": (["--output-format", "json+binref", "--output-path", "out", "apply", PAYLOAD], {}),
    "output file": (["--output-path", "out", "--output-file", "r.json", "apply", PAYLOAD], {}),
    "payload in a file": (["apply", "@p.json"], {"files": {"p.json": PAYLOAD}}),
    "payload at an address": (
        ["apply", "@file:///proc/self/cwd/p.json"],
        {"files": {"p.json": PAYLOAD}},
    ),
    "payload in no file": (["apply", "@no.json"], {}),
    "payload with base64": (["apply", json.dumps({"inputs": {"part": {"v": BASE64}}})], {}),
    "not JSON": (["apply", "{"], {}),
    "refused": (["apply", '{"inputs": {}}'], {}),
    "refused field": (["apply", json.dumps({"inputs": INPUTS, "more": 1})], {}),
    "refused path": (["jacobian", JACOBIAN.replace("part.v", "no.v")], {}),
    "failed": (["apply", '{"inputs": {"part": {"v": [1.0]}, "name": "bad"}}'], {}),
    "variable": (["apply", PAYLOAD], variables(OUTPUT_FORMAT="json+base64")),
    "variable of the command": (
        ["apply", PAYLOAD],
        variables(OUTPUT_FORMAT="json+base64", RUNTIME_OUTPUT_FORMAT="json"),
    ),
    "option before variable": (
        ["--output-format", "json", "apply", PAYLOAD],
        variables(RUNTIME_OUTPUT_FORMAT="json+base64"),
    ),
    "impossible variable": (["apply", PAYLOAD], variables(OUTPUT_FORMAT="xml")),
    "impossible variable of the command": (
        ["apply", PAYLOAD],
        variables(RUNTIME_OUTPUT_FORMAT="xml"),
    ),
    "unknown variable": (["apply", PAYLOAD], variables(NONSENSE="1")),
    "no component": (["apply", PAYLOAD], variables(API_PATH="nothing.py")),
    "gradients": (["check-gradients", PAYLOAD, "--seed", "0", "--no-show-progress"], IS_SILENT),
    "gradients with a step": (
        ["check-gradients", PAYLOAD, "--eps-for", "part.v=1e-5", "--no-show-progress"],
        IS_SILENT,
    ),
    "gradients by variables": (
        ["check-gradients", PAYLOAD],
        {
            **IS_SILENT,
            "env": {
                **IS_SILENT["env"],
                "TESSERACT_RUNTIME_CHECK_GRADIENTS_SHOW_PROGRESS": "0",
                "TESSERACT_RUNTIME_CHECK_GRADIENTS_ENDPOINTS": "jacobian no_such_endpoint",
            },
        },
    ),
    "gradients without a step": (["check-gradients", PAYLOAD, "--eps-for", "part.v"], IS_SILENT),
    "gradients of nothing": (["check-gradients", '{"inputs": {}}'], IS_SILENT),
}


@pytest.fixture(autouse=True)
def component(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("TESSERACT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TESSERACT_API_PATH", str(SCALING / "tesseract_api.py"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The folder of every case, here and there."""
    pytest.importorskip("tesseract_core")
    folder = tmp_path_factory.mktemp("cases")
    cases = [{"name": name, "arguments": a, **more} for name, (a, more) in CASES.items()]
    (folder / "cases.json").write_text(json.dumps(cases))
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TESSERACT_")}
    kept["TESSERACT_API_PATH"] = str(SCALING / "tesseract_api.py")
    entries = {
        "here": "chainrule.compat.tesseract_core.runtime._main",
        "there": "tesseract_core.runtime.cli",
    }
    for side, module in entries.items():
        command = [sys.executable, str(HERE / "run_cases.py"), module, str(folder / "cases.json")]
        subprocess.run([*command, str(folder / side)], env=kept, check=True, timeout=200)
    return folder


def described(folder):
    """All that a caller sees, but for names of files that are drawn."""
    work = folder / "work"
    names = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
    log = next(work.rglob("tesseract.log"), None)
    return {
        "code": (folder / "code").read_text(),
        "stdout": _without_drawn((folder / "stdout").read_text()),
        "files": [_without_drawn(name) for name in names if "__pycache__" not in name],
        "log": None if log is None else re.sub(r"(?s)Traceback.*", "", log.read_text()),
        "written": [path.read_text() for path in work.rglob("r.json")],
    }


def _without_drawn(text):
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", text)


@pytest.mark.interop
@pytest.mark.parametrize("name", CASES)
def test_same_as_the_ancestor(name, outcomes):
    assert described(outcomes / "here" / name) == described(outcomes / "there" / name)


@pytest.mark.interop
def test_same_flags():
    pytest.importorskip("tesseract_core")
    import typer
    from tesseract_core.runtime.cli import app

    there = typer.main.get_command(app)
    parser = make_parser()
    commands = next(a for a in parser._actions if a.dest == "command").choices
    flags = {name: set(command._option_string_actions) for name, command in commands.items()}
    flags[""] = set(parser._option_string_actions)
    for name, command in {"": there, **there.commands}.items():
        theirs = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        theirs = {flag for flag in theirs if flag.startswith("-")}
        missing = theirs - flags[name]
        assert missing == ({"--install-completion", "--show-completion"} if name == "" else set())


def here(capfdbinary, *arguments):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    captured = capfdbinary.readouterr()
    return leaving.value.code or 0, captured.out, captured.err.decode()


def test_result_alone_goes_to_standard_output(capfdbinary):
    code, out, err = here(capfdbinary, "apply", PAYLOAD)
    assert code == 0
    assert json.loads(out)["z"]["data"] == {"buffer": 5.25, "encoding": "json"}
    assert "scaling plain" in err
    assert Path("logs/tesseract.log").read_text() == "scaling plain\n"


def test_binary_files_hold_the_values(capfdbinary, tmp_path):
    options = ["--output-format", "json+binref", "--output-path", "out", "--output-file", "r.json"]
    assert here(capfdbinary, *options, "apply", PAYLOAD)[:2] == (0, b"")
    y = json.loads((tmp_path / "out/r.json").read_text())["y"]
    name, offset = re.fullmatch(r"([0-9a-f-]+\.bin):(\d+)", y["data"]["buffer"]).groups()
    stored = np.frombuffer((tmp_path / "out" / name).read_bytes()[int(offset) :][:24])
    np.testing.assert_allclose(stored, 3 * np.sin([0.0, 0.5, 2.0]))


def test_describing_commands(capfdbinary):
    code, out, _ = here(capfdbinary, "--name", "other", "openapi-schema")
    assert code == 0
    assert json.loads(out)["info"]["title"] == "other"
    code, out, err = here(capfdbinary, "check")
    assert (code, out) == (0, b"")
    assert err.startswith("scaling is a component")


def test_a_wrong_answer_is_no_mistake_of_the_caller(capfdbinary):
    code, out, _ = here(capfdbinary, "test", WRONG)
    assert (code, json.loads(out)["status"]) == (0, "failed")


def test_profile_and_trace_go_to_the_log(capfdbinary):
    assert here(capfdbinary, "--profiling", "--tracing", "apply", PAYLOAD)[0] == 0
    log = Path("logs/tesseract.log").read_text()
    assert "--- Profiling Statistics ---" in log
    assert 'apply called with {"inputs": {"part": {"v": [0.0, 0.5, 2.0]' in log


def test_a_refused_call_leaves_earlier_logs_alone(capfdbinary):
    Path("logs").mkdir()
    Path("logs/note.txt").write_text("mine")
    assert here(capfdbinary, "apply", '{"inputs": {}}')[0] == 2
    assert Path("logs/note.txt").read_text() == "mine"


def test_wrong_gradients(capfdbinary, monkeypatch, tmp_path):
    source = (SCALING / "tesseract_api.py").read_text().replace("2 * v,", "3 * v,")
    (tmp_path / "wrong.py").write_text(source)
    monkeypatch.setenv("TESSERACT_API_PATH", str(tmp_path / "wrong.py"))
    code, _, err = here(capfdbinary, "check-gradients", PAYLOAD, "--max-failures", "1")
    assert code == 1
    assert "Gradient check for vector_jacobian_product failed" in err
    assert not list(tmp_path.glob("run_*"))


@pytest.mark.interop
def test_clients_of_a_served_component(tmp_path):
    """Served, called by both clients, and ended by its parent's end of a pipe."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "chainrule.compat.tesseract_core.runtime"]
    options = ["--output-path", str(tmp_path), "serve", "--port", "0"]
    server = subprocess.Popen(
        [*command, *options, "--parent-pipe-fd", str(reading)],
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[reading],
    )
    os.close(reading)
    try:
        url = next(line for line in server.stderr if line.startswith("Serving at")).split()[-1]
        ours = Tesseract.from_url(url)
        real = pytest.importorskip("tesseract_core").Tesseract.from_url(url)
        assert ours.health() == real.health()
        assert ours.server_capabilities.output_formats == real.server_capabilities.output_formats
        for handle in (ours, real):
            run_id = handle.__class__.__module__
            found = handle.apply({"part": {"v": np.array([0.0, 0.5])}}, run_id=run_id)
            np.testing.assert_allclose(found["y"], 2 * np.sin([0.0, 0.5]))
            logs = tmp_path / f"run_{run_id}" / "logs"
            assert (logs / "tesseract.log").read_text() == "scaling plain\n"
            names = {path.name for path in logs.iterdir()}
            assert names == {"artifacts", "metrics.csv", "parameters.json", "tesseract.log"}
        os.close(writing)
        server.wait(20)
    finally:
        server.kill()
        server.wait(20)
        server.stderr.close()
