"""`chainrule-tesseract-runtime` beside the real `tesseract-runtime`: same output, files, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chainrule.compat.tesseract_core import Tesseract
from chainrule.compat.tesseract_core.runtime._main import main

SCALING = Path(__file__).parent / "programs" / "scaling"
INPUTS = {"part": {"v": [0.0, 0.5, 2.0], "s": 3.0}, "offsets": [1.0]}
PAYLOAD = json.dumps({"inputs": INPUTS})
JACOBIAN = json.dumps({"inputs": INPUTS, "jac_inputs": ["part.v"], "jac_outputs": ["y", "z"]})


@pytest.fixture(autouse=True)
def component(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("TESSERACT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TESSERACT_API_PATH", str(SCALING / "tesseract_api.py"))
    monkeypatch.chdir(tmp_path)


def here(capfdbinary, *arguments):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    captured = capfdbinary.readouterr()
    return leaving.value.code or 0, captured.out, captured.err.decode()


def there(*arguments):
    pytest.importorskip("tesseract_core")
    command = [sys.executable, "-m", "tesseract_core.runtime", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.interop
@pytest.mark.parametrize(
    "arguments",
    [
        ["apply", PAYLOAD],
        ["--output-format", "json+base64", "--compression", "lz4", "jacobian", JACOBIAN],
        ["apply", '{"inputs": {}}'],
        ["apply", '{"inputs": {"part": {"v": [1.0]}, "name": "bad"}}'],
        ["apply", "{"],
        ["test", (SCALING / "test_cases/test_apply.json").read_text()],
    ],
    ids=["json", "lz4", "refused", "failed", "malformed", "test"],
)
def test_same_as_the_ancestor(arguments, capfdbinary, tmp_path):
    ours = here(capfdbinary, "--output-path", str(tmp_path / "here"), *arguments)
    theirs = there("--output-path", str(tmp_path / "there"), *arguments)
    assert ours[0] == theirs[0]
    if "test" in arguments:
        assert json.loads(ours[1])["status"] == json.loads(theirs[1])["status"] == "passed"
    elif ours[0] == 0:
        assert json.loads(ours[1]) == json.loads(theirs[1])
    else:
        assert ours[1] == theirs[1] == b""
    if arguments[0] == "apply" and ours[0] == 0:
        layout = [
            sorted(str(path.relative_to(tmp_path / side)) for path in (tmp_path / side).rglob("*"))
            for side in ("here", "there")
        ]
        assert layout[0] == layout[1]
        log = "logs/tesseract.log"
        assert (tmp_path / "here" / log).read_text() == (tmp_path / "there" / log).read_text()


def test_result_alone_goes_to_standard_output(capfdbinary):
    code, out, err = here(capfdbinary, "apply", PAYLOAD)
    assert code == 0
    assert json.loads(out)["z"]["data"] == {"buffer": 5.25, "encoding": "json"}
    assert "scaling plain" in err
    assert Path("logs/tesseract.log").read_text() == "scaling plain\n"


def test_files_and_settings(capfdbinary, monkeypatch, tmp_path):
    (tmp_path / "payload.json").write_text(PAYLOAD)
    monkeypatch.setenv("TESSERACT_OUTPUT_FORMAT", "json+base64")
    monkeypatch.setenv("TESSERACT_RUNTIME_OUTPUT_FORMAT", "json+binref")
    code, out, _ = here(
        capfdbinary, "--output-path", "out", "--output-file", "r.json", "apply", "@payload.json"
    )
    assert (code, out) == (0, b"")
    y = json.loads((tmp_path / "out/r.json").read_text())["y"]
    assert y["data"]["encoding"] == "binref"
    name, offset = re.fullmatch(r"([0-9a-f-]+\.bin):(\d+)", y["data"]["buffer"]).groups()
    stored = np.frombuffer((tmp_path / "out" / name).read_bytes()[int(offset) :][:24])
    np.testing.assert_allclose(stored, 3 * np.sin([0.0, 0.5, 2.0]))


def test_describing_commands(capfdbinary):
    assert here(capfdbinary, "health")[1] == b'{"status":"ok"}'
    code, out, _ = here(capfdbinary, "--name", "other", "openapi-schema")
    assert code == 0
    assert json.loads(out)["info"]["title"] == "other"
    code, out, err = here(capfdbinary, "check")
    assert (code, out) == (0, b"")
    assert err.startswith("scaling is a component")


def test_check_gradients(capfdbinary, monkeypatch, tmp_path):
    options = ["--seed", "0", "--eps-for", "part.v=1e-5", "--input-paths", "part.v"]
    code, out, err = here(capfdbinary, "check-gradients", PAYLOAD, *options)
    assert (code, out) == (0, b"")
    assert "Gradient check for jacobian passed (0 failures" in err
    source = (SCALING / "tesseract_api.py").read_text().replace("2 * v,", "3 * v,")
    (tmp_path / "wrong.py").write_text(source)
    monkeypatch.setenv("TESSERACT_API_PATH", str(tmp_path / "wrong.py"))
    code, _, err = here(capfdbinary, "check-gradients", PAYLOAD, "--max-failures", "1")
    assert code == 1
    assert "Gradient check for vector_jacobian_product failed" in err


def test_usage(capfdbinary, monkeypatch):
    assert here(capfdbinary, "no-such-command")[0] == 2
    assert here(capfdbinary, "apply", "@missing.json")[0] == 2
    monkeypatch.setenv("TESSERACT_API_PATH", "missing.py")
    assert here(capfdbinary, "apply", PAYLOAD)[0] == 1
    monkeypatch.setenv("TESSERACT_GPU_TRANSPORT", "carrier pigeon")
    assert here(capfdbinary, "health")[0] == 1


@pytest.mark.interop
def test_clients_of_a_served_component(tmp_path):
    command = [sys.executable, "-m", "chainrule.compat.tesseract_core.runtime"]
    options = ["--output-path", str(tmp_path), "serve", "--port", "0"]
    server = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        url = next(line for line in server.stderr if line.startswith("Serving at")).split()[-1]
        ours = Tesseract.from_url(url)
        real = pytest.importorskip("tesseract_core").Tesseract.from_url(url)
        assert ours.health() == real.health()
        assert ours.server_capabilities.output_formats == real.server_capabilities.output_formats
        for handle in (ours, real):
            found = handle.apply({"part": {"v": np.array([0.0, 0.5])}})
            np.testing.assert_allclose(found["y"], 2 * np.sin([0.0, 0.5]))
    finally:
        server.terminate()
        server.wait(20)
        server.stderr.close()
