"""A component in a process of its own, and in an environment of its own."""

import contextlib
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
import pytest

from chainrule._codec import DEFAULT_LIMITS, Limits
from chainrule.client import Component
from chainrule.client._environment import ensure_environment
from chainrule.errors import (
    ComponentError,
    DefinitionError,
    InputError,
    LimitError,
    TransportError,
)
from waiting import wait_until

SOURCE = Path(__file__).with_name("some_component.py")


def pid_of(component):
    return int(component.apply({"x": [1.0], "action": "pid"})["note"])


def test_it_runs_elsewhere_and_ends_with_the_handle():
    with Component.from_source(SOURCE) as component:
        pid = pid_of(component)
        assert pid != os.getpid()
        assert psutil.pid_exists(pid)
        assert f"process {pid}" in repr(component)
    assert not psutil.pid_exists(pid)
    with pytest.raises(TransportError):
        component.apply({"x": [1.0]})


def test_it_outlives_the_thread_that_started_it():
    made = []
    thread = threading.Thread(target=lambda: made.append(Component.from_source(SOURCE)))
    thread.start()
    thread.join()
    with made[0] as component:
        assert component.transport.place == f"process {pid_of(component)}"
        with pickle.loads(pickle.dumps(component)) as other:  # starts a process of its own
            assert pid_of(other) != pid_of(component)


def test_a_handle_to_a_component_of_this_process_can_be_sent_to_another():
    component = Component.from_api(os.path.relpath(SOURCE), config={"name": "sent"})
    received = pickle.loads(pickle.dumps(component))
    assert received.name == "sent"
    assert received.apply({"x": [2.0]})["total"] == component.apply({"x": [2.0]})["total"]


def test_a_forgotten_handle_leaves_no_process():
    component = Component.from_source(SOURCE)
    pid = pid_of(component)
    del component
    wait_until(lambda: not psutil.pid_exists(pid))


def test_a_crash_is_an_error_of_the_call_and_the_next_call_gets_a_new_process():
    with Component.from_source(SOURCE) as component:
        first = pid_of(component)
        with pytest.raises(TransportError, match="status 3") as caught:
            component.apply({"x": [1.0], "action": "exit"})
        assert caught.value.code == "worker_crashed"
        assert caught.value.details == {"exit_code": 3}
        assert pid_of(component) != first


def test_a_call_that_takes_too_long_is_stopped():
    with Component.from_source(SOURCE, timeout=0.5) as component:
        with pytest.raises(TransportError) as caught:
            component.apply({"x": [1.0], "action": "sleep30"})
        assert caught.value.code == "call_timeout"

        def answers():
            with contextlib.suppress(TransportError):  # the machine is busy: too long as well
                return component.apply({"x": [1.0]})["total"] == 1.0

        wait_until(answers)


def test_giving_up_interrupts_the_work_and_keeps_the_process():
    with Component.from_source(SOURCE) as component:
        pid = pid_of(component)
        job = component.submit("apply", {"x": [1.0], "action": "sleep30"})
        threading.Timer(0.3, job.cancel).start()
        with pytest.raises(TransportError) as caught:
            job.result(300)
        assert caught.value.code == "cancelled"
        assert pid_of(component) == pid


def test_the_next_call_does_not_get_the_answer_of_one_that_was_interrupted(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with Component.from_source(SOURCE) as component:
        with monkeypatch.context() as while_waiting:
            while_waiting.setattr("chainrule.client._subprocess.receive_message", interrupt)
            with pytest.raises(KeyboardInterrupt):
                component.apply({"x": [7.0]})
        assert component.apply({"x": [1.0]})["total"] == 1.0


def test_nor_one_that_nobody_asked_for(tmp_path):
    source = tmp_path / "forking.py"
    source.write_text(
        "import os\n"
        "def double(x: float) -> float:\n"
        "    if x < 0: os.fork()  # and both go on, and answer\n"
        "    return 2 * x\n"
    )
    with Component.from_source(f"{source}:double") as component:
        results = [component.apply({"x": x})["result"] for x in (-1.0, 2.0, 3.0, 4.0)]
    assert results == [-2.0, 4.0, 6.0, 8.0]


def test_it_has_the_memory_settings_of_a_servers_workers_and_the_users_before_them(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with Component.from_source(SOURCE) as component:
        settings = component.apply({"x": [1.0], "action": "tunables"})["note"]
    assert {setting.partition("=")[0] for setting in settings.split(":")} >= {
        "glibc.malloc.trim_threshold",
        "glibc.cpu.x86_non_temporal_threshold",
    }
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    with Component.from_source(SOURCE) as component:
        chosen = component.apply({"x": [1.0], "action": "tunables"})["note"]
    assert chosen == "glibc.malloc.check=0"


def test_memory_is_used_again_and_results_stay_valid():
    with Component.from_source(SOURCE) as component:
        kept = component.apply({"x": np.full(200_000, 3.0)})["y"]
        for k in range(5):
            assert component.apply({"x": np.full(200_000, float(k))})["y"][0] == 2.0 * k * k
        np.testing.assert_array_equal(kept, np.full(200_000, 18.0))
    assert kept[-1] == 18.0  # even after the process has ended


def test_a_component_that_cannot_be_loaded_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')")
    with pytest.raises(DefinitionError, match="no licence"):
        Component.from_source(tmp_path / "broken.py")
    (tmp_path / "dying.py").write_text("import os; os._exit(7)")
    with pytest.raises(TransportError, match="status 7 while it loaded"):
        Component.from_source(tmp_path / "dying.py")
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    with pytest.raises(TransportError) as caught:
        Component.from_source(tmp_path / "slow.py", startup_timeout=0.5)
    assert caught.value.code == "startup_timeout"


@pytest.fixture
def project(tmp_path):
    """A component that needs a package which only its own environment has."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "only-there"\nversion = "1"\n'
    )
    (package / "only_there.py").write_text("FACTOR = 7.0\n")
    home = tmp_path / "component"
    home.mkdir()
    text = SOURCE.read_text().replace("import numpy", "import only_there\nimport numpy")
    (home / "tesseract_api.py").write_text(text.replace("2.0\n", "only_there.FACTOR\n"))
    return home


def install_by_hand(home, package):
    packages = next((home / ".chainrule-venv").glob("lib/python*/site-packages"))
    shutil.copy(package / "only_there.py", packages)


def test_an_environment_of_its_own(project):
    with pytest.raises(DefinitionError, match="only_there"):
        Component.from_source(project)
    python = ensure_environment(project)
    install_by_hand(project, project.parent / "package")
    with Component.from_source(project, environment=True) as component:
        assert component.apply({"x": [1.0]})["y"].tolist() == [7.0]
    assert python.exists()
    assert "only_there" not in sys.modules


# Not the version that pytest has brought into this environment.
REQUIREMENT = "iniconfig==1.1.1"


@pytest.fixture
def registry(tmp_path):
    """Skips where pip cannot get what the test installs."""
    pip = [sys.executable, "-m", "pip", "--timeout", "5", "--retries", "0"]
    command = [*pip, "download", "--quiet", "--no-deps", "-d", str(tmp_path), REQUIREMENT]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the package registry cannot be reached")


LOCK = """lock-version = "1.0"
created-by = "a test"

[[packages]]
name = "iniconfig"
version = "1.1.1"

[[packages.wheels]]
name = "{name}"
path = "../{name}"
hashes = {{sha256 = "{digest}"}}
"""


def declared(kind, folder):
    """The file in which a component asks for the requirement, and its content."""
    (wheel,) = folder.glob("iniconfig*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {
        "requirements.txt": f"{REQUIREMENT}\n",
        "pylock.toml": LOCK.format(name=wheel.name, digest=digest),
        "pyproject.toml": f"[project]\nname = 'x'\nversion = '1'\ndependencies = ['{REQUIREMENT}']\n",
    }[kind]


@pytest.mark.parametrize("kind", ["requirements.txt", "pylock.toml", "pyproject.toml"])
def test_requirements_are_installed_by_pip_and_win_over_what_is_here(tmp_path, registry, kind):
    home = tmp_path / "component"
    home.mkdir()
    text = SOURCE.read_text().replace(
        "import numpy", "from importlib.metadata import version\nimport numpy"
    )
    (home / "tesseract_api.py").write_text(
        text.replace("2.0\n", "float(version('iniconfig')[0])\n")
    )
    (home / kind).write_text(declared(kind, tmp_path))
    if kind == "pylock.toml" and int(metadata.version("pip").partition(".")[0]) < 26:
        with pytest.raises(DefinitionError, match="needs pip 26 or newer"):
            Component.from_source(home, environment=True)
        return
    with Component.from_source(home, environment=True) as component:
        assert component.apply({"x": [1.0]})["y"].tolist() == [1.0]
    assert metadata.version("iniconfig") != "1.1.1"


def test_an_environment_is_made_again_when_the_requirements_change(project):
    ensure_environment(project)
    marker = project / ".chainrule-venv" / "marker"
    marker.touch()
    ensure_environment(project)
    assert marker.exists()
    (project / "tesseract_requirements.txt").write_text("# nothing\n")
    ensure_environment(project)
    assert not marker.exists()


def test_requirements_that_cannot_be_installed(project):
    (project / "tesseract_requirements.txt").write_text("./no-such-folder\n")
    with pytest.raises(DefinitionError) as caught:
        ensure_environment(project)
    assert caught.value.code == "environment_failed"
    assert not (project / ".chainrule-venv").exists()
    folder = project / "precious"
    folder.mkdir()
    with pytest.raises(DefinitionError, match="not a virtual environment"):
        ensure_environment(project, folder)


def test_the_bounds_for_strangers_are_not_for_us(tmp_path):
    source = tmp_path / "counting.py"
    source.write_text("def count(entries: dict[str, int]) -> int:\n    return len(entries)\n")
    entries = {str(k): k for k in range(DEFAULT_LIMITS.max_fields + 1)}
    with Component.from_source(f"{source}:count") as component:
        assert component.apply({"entries": entries}) == {"result": len(entries)}
    config = {"limits": Limits(max_fields=10)}  # unless we say so
    with (
        Component.from_source(f"{source}:count", config=config) as component,
        pytest.raises(LimitError),
    ):
        component.apply({"entries": {str(k): k for k in range(20)}})


def test_an_interpreter_without_chainrule(tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o700)
    with pytest.raises(TransportError, match="bare-python does not have Chainrule") as caught:
        Component.from_source(SOURCE, python=bare)
    assert caught.value.code == "not_startable"


def test_a_path_is_no_transport():
    with pytest.raises(InputError, match=r"found a str. Component.from_source\(path\)") as caught:
        Component("solver.py")
    assert caught.value.code == "not_a_transport"


def test_an_interpreter_or_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(TransportError, match="no-such-python") as caught:
        Component.from_source(SOURCE, python=tmp_path / "no-such-python")
    assert caught.value.code == "not_startable"
    with pytest.raises(DefinitionError) as caught:
        Component.from_source(tmp_path / "absent" / "component.py", environment=True)
    assert caught.value.code == "module_missing"
    with pytest.raises(DefinitionError) as caught:
        Component.from_source(tmp_path / "absent.py")
    assert caught.value.code == "module_missing"
    assert not getattr(caught.value, "__notes__", [])  # the message says it all
    assert not any(tmp_path.iterdir())


def test_an_exception_of_the_author_survives_the_border():
    with Component.from_source(SOURCE) as component, pytest.raises(ComponentError) as caught:
        component.apply({"x": [1.0], "action": "raise"})
    assert 'raise ValueError("mesh is empty")' in caught.value.remote_traceback


def test_what_a_failing_command_wrote_reaches_the_caller(tmp_path):
    (tmp_path / "component.yaml").write_text(
        f"command: [{sys.executable}, -c, \"import sys; sys.exit('mesh is empty')\"]\n"
        "inputs: {x: float}\noutputs: {y: float}\n"
    )
    with Component.from_source(tmp_path / "component.yaml") as component:
        with pytest.raises(ComponentError) as caught:
            component.apply({"x": 1.0})
        assert caught.value.details["stderr"] == "mesh is empty"
        assert caught.value.details["exit_code"] == 1
