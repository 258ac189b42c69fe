"""`chainrule serve` starts a server that answers, and stops when asked."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
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
            with urllib.request.urlopen(request, timeout=300) as response:
                assert json.load(response) == {"result": 4.0}
            call = [*command[:3], "apply", url, "--set", "x=3.0"]
            assert json.loads(subprocess.check_output(call, timeout=300)) == {"result": 6.0}
            missing = subprocess.run(
                [*call[:3], "call", "vjp", url, "{}"], capture_output=True, text=True
            )
            assert (missing.returncode, missing.stdout) == (2, "")
        finally:
            server.send_signal(signal.SIGTERM)
        server.stderr.read()
    # uvicorn stops in order and then lets the signal take its course.
    assert server.returncode in (0, -signal.SIGTERM)


def test_unsafe_binds_are_refused(tmp_path):
    (tmp_path / "component.py").write_text("")
    command = [sys.executable, "-m", "chainrule", "serve", "component.py", "--host", "0.0.0.0"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode != 0
    assert list(tmp_path.glob("chainrule/jobs/*")) == []  # nothing is kept for what never ran
    assert "unsafe_bind" in done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_have_a_folder_by_default(tmp_path, monkeypatch, caplog):
    """One for the same components on the same port; none with a port that is new every time."""
    from argparse import Namespace

    from chainrule.cli._serve import _usual_jobs_folder

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def folder(port, *components):
        return _usual_jobs_folder(Namespace(port=port, components=list(components)))

    first = folder(8000, "a.py", "b.py")
    assert first.is_dir()
    assert first.is_relative_to(tmp_path / "chainrule" / "jobs")
    assert first.stat().st_mode & 0o077 == 0
    assert folder(8000, "a.py", "b.py") == first
    assert len({first, folder(8001, "a.py", "b.py"), folder(8000, "a.py")}) == 3
    assert folder(0, "a.py") is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert folder(8000, "a.py") is None
    assert "will not outlive" in caplog.text


def test_the_same_component_twice_on_one_port(tmp_path, monkeypatch):
    """The folder of jobs is taken before the port is; the message names the port."""
    import fcntl
    from argparse import Namespace

    from chainrule.cli._serve import _usual_jobs_folder

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "double.py").write_text("def double(x: float) -> float:\n    return 2 * x\n")
    source = f"{tmp_path / 'double.py'}:double"
    folder = _usual_jobs_folder(Namespace(port=8000, components=[source]))
    command = [sys.executable, "-m", "chainrule", "serve", source, "--port", "8000"]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "on port 8000 already" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(
    ("text", "code", "status"),
    [(None, "component_missing", 2), ("raise ValueError('no licence')", "module_failed", 1)],
)
def test_what_keeps_a_server_from_starting_is_one_clear_error(
    tmp_path, workers, text, code, status
):
    if text is not None:
        (tmp_path / "component.py").write_text(text)
    command = [sys.executable, "-m", "chainrule", "serve", "component.py", "--port", "0"]
    done = subprocess.run(
        [*command, "--workers", workers], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status
    assert f"[{code}]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>/dev/null"])
def test_a_server_needs_no_standard_output(tmp_path, closed):
    (tmp_path / "double.py").write_text("def double(x: float) -> float:\n    return 2 * x\n")
    options = "--port 0 --workers 0"
    line = f"exec {sys.executable} -m chainrule serve double.py:double {options} {closed}"
    with subprocess.Popen(["sh", "-c", line], cwd=tmp_path, stderr=subprocess.PIPE) as server:
        try:
            is_silent = "2>" in closed
            address = _listens_at(server) if is_silent else _announced(server.stderr)
            with urllib.request.urlopen(f"{address}/health", timeout=300) as response:
                assert response.status == 200
        finally:
            server.terminate()
        server.stderr.read()
    assert server.returncode in (0, -signal.SIGTERM)


def _announced(stream):
    return next(line for line in stream if b"Serving at" in line).split()[-1].decode()


def _listens_at(server):
    process = psutil.Process(server.pid)
    while server.poll() is None:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                return f"http://127.0.0.1:{connection.laddr.port}"
        time.sleep(0.05)
    raise AssertionError(f"the server ended with {server.returncode}")


@pytest.mark.parametrize(
    ("end", "code"), [(">&-", "output_closed"), (">/dev/full", "output_failed")]
)
def test_a_server_that_cannot_say_where_it_is_stops(tmp_path, end, code):
    (tmp_path / "double.py").write_text("def double(x: float) -> float:\n    return 2 * x\n")
    line = f"{sys.executable} -m chainrule serve double.py:double --port 0 --json {end}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=300
    )
    assert done.returncode in (1, 2)
    assert json.loads(done.stderr)["error"]["code"] == code


def test_reload_looks_at_files_that_are_not_hidden_below_the_folder(tmp_path, monkeypatch):
    """The component may be in a hidden folder, and the working directory beside it or in it."""
    from chainrule.cli._serve import _change_times

    folder = tmp_path / ".work" / "spring"
    for name in ("spring.py", "parts/wire.py", ".venv/lib/numpy.py", "parts/.old/wire.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    other = tmp_path / "other" / "place"
    other.mkdir(parents=True)
    for working, named in ((tmp_path, folder), (folder, Path()), (other, "../../.work/spring")):
        monkeypatch.chdir(working)
        found = _change_times([Path(named)])
        assert sorted(path.resolve().relative_to(folder).as_posix() for path in found) == [
            "parts/wire.py",
            "spring.py",
        ]
