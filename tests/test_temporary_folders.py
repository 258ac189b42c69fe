"""Temporary folders: those of living servers stay, those of dead ones go, wherever the servers ran."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chainrule._files import Scratch
from chainrule.errors import StorageError

HOLD = """
import sys
from chainrule._files import Scratch
scratch = Scratch("jobs")
(scratch.path / "content").write_bytes(b"needed")
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def isolated():
    """The command that gives a process its own numbers of processes, as a container does."""
    command = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("no namespaces of processes here")
    return command


def holder(place, *prefix):
    """A process that has a folder; its path is the first line that it prints."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def folders(place):
    return sorted(path.name for path in place.glob("chainrule-*"))


def test_a_folder_is_private_and_goes_when_it_is_removed(place):
    scratch = Scratch("jobs")
    assert scratch.path.parent == place
    assert stat.S_IMODE(scratch.path.stat().st_mode) == 0o700
    (scratch.path / "content").write_bytes(b"")
    scratch.remove()
    assert folders(place) == []


@pytest.mark.parametrize("inside", [False, True], ids=["here", "in a container"])
def test_a_living_server_keeps_its_folder(place, inside):
    """A server in a container sees none of our processes, and we see none of its."""
    prefix = isolated() if inside else []
    with holder(place, *prefix) as process:
        path = process.stdout.readline().strip()
        Scratch("jobs").remove()
        with holder(place, *isolated()) as other:
            other.stdout.readline()
            other.communicate()
        with open(os.path.join(path, "content"), "rb") as file:
            assert file.read() == b"needed"
        process.communicate()


@pytest.mark.parametrize("inside", [False, True], ids=["here", "in a container"])
def test_what_a_killed_server_left_is_removed(place, inside):
    """In a container the killed one was process 1, a number that is always taken here."""
    with holder(place, *(isolated() if inside else [])) as process:
        assert process.stdout.readline()
        left = folders(place)
        assert len(left) == 1
        if inside:  # the first process there takes all others with it
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            os.kill(int(children), signal.SIGKILL)
        else:
            process.kill()
    scratch = Scratch("jobs")
    assert folders(place) == [scratch.path.name]
    assert left != [scratch.path.name]
    scratch.remove()


def test_others_folders_and_files_are_left_alone(place):
    (place / "chainrule-scratch-file").write_bytes(b"")
    (place / "chainrule-else").mkdir()
    (place / "target").mkdir()
    (place / "chainrule-scratch-link").symlink_to(place / "target")
    Scratch("jobs").remove()
    expected = ["chainrule-else", "chainrule-scratch-file", "chainrule-scratch-link", "target"]
    assert sorted(path.name for path in place.iterdir()) == expected


def test_a_system_without_a_folder_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    if os.access("/dev/shm", os.W_OK):
        scratch = Scratch("residuals", in_memory=True)
        assert scratch.path.is_dir()
        scratch.remove()
    with pytest.raises(StorageError, match="TMPDIR") as caught:
        Scratch("jobs")
    assert caught.value.code == "no_scratch_folder"
