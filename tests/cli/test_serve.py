"""`chainrule serve` starts a server that answers, and stops when asked."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("uvicorn")


def test_serve_and_stop(tmp_path):
    (tmp_path / "component.py").write_text(
        "import chainrule\n@chainrule.component\ndef double(x: float) -> float:\n    return 2 * x\n"
    )
    command = [
        sys.executable,
        "-m",
        "chainrule",
        "serve",
        "component.py",
        "--port",
        "0",
        "--workers",
        "0",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = next(line for line in server.stderr if "Serving at" in line).split()[-1]
            request = urllib.request.Request(
                f"{url}/apply", b'{"inputs": {"x": 2.0}}', {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=20) as response:
                assert json.load(response) == {"result": 4.0}
        finally:
            server.send_signal(signal.SIGTERM)
        server.stderr.read()
    # uvicorn stops in order and then lets the signal take its course.
    assert server.returncode in (0, -signal.SIGTERM)


def test_unsafe_binds_are_refused(tmp_path):
    (tmp_path / "component.py").write_text("")
    command = [sys.executable, "-m", "chainrule", "serve", "component.py", "--host", "0.0.0.0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "unsafe_bind" in done.stderr
    assert "Traceback" not in done.stderr
