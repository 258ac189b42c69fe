"""Container engines and a base image for tests, wherever podman can be made to work.

There may be no registry and no daemon: the base image is bootstrapped from Debian's packages, and podman gets
settings that also work as root inside a container. Every file of tests has a store of images of its own, in
every run, so that files and runs can overlap; the base image is kept in the user's cache between runs.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

BASE = "localhost/chainrule-test-base:bookworm"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chainrule" / "containers"
BUNDLE = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
ARCHIVE = CACHE / "base.tar"
# The host's certificates, for the installation only: a proxy may sign with its own.
BUILD_ENV = {"SSL_CERT_FILE": str(BUNDLE), "PIP_CERT": str(BUNDLE)}
BUILD_ARGS = f"--isolation chroot --network host -v {BUNDLE}:{BUNDLE}:ro"

_CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE_CONF = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


@contextlib.contextmanager
def podman(store):
    """Let podman work here, in a store of images with the base image; skip where it cannot."""
    with _own_folder(store) as folder, pytest.MonkeyPatch.context() as patch:
        environment = write_settings(folder)
        reason = _why_not(environment)
        if reason is not None:
            pytest.skip(f"no container engine here: {reason}")
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def _own_folder(store):
    """A folder that no other run uses, although it may be left by one that was killed; removed in the end."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        folder = CACHE / f"{store}-{number}"
        with folder.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            remove(folder)
            yield folder
            remove(folder)
            return


def remove(folder):
    """Remove the folder of an engine; some things are still mounted in it."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if line.split()[1].startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", line.split()[1]], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def make_base():
    """Why there is no archive of the base image; `None` when it is there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ARCHIVE.exists():
            return None
        if shutil.which("mmdebstrap") is None:
            return "there is no base image, and no mmdebstrap to make one"
        unfinished = ARCHIVE.with_name("unfinished.tar")
        packages = "python3-minimal,python3-venv,ca-certificates"
        command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm"]
        try:
            subprocess.run([*command, unfinished], check=True, capture_output=True, timeout=1200)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            return f"no base image can be made: {(error.stderr or b'')[-200:]!r}"
        unfinished.rename(ARCHIVE)
        return None


def write_settings(folder):
    """Variables under which podman works in a store in this folder; the files they name are written there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "containers.conf").write_text(_CONTAINERS_CONF)
    (folder / "storage.conf").write_text(_STORAGE_CONF.format(folder=folder))
    return {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CHAINRULE_ENGINE": "podman",
        "CHAINRULE_BUILD_ARGS": BUILD_ARGS,
    }


def _why_not(environment):
    tools = [tool for tool in ("podman", "runc") if shutil.which(tool) is None]
    if tools:
        return f"{tools[0]} is not installed"
    if os.getuid() != 0:
        return "the tests' storage of images needs root"
    reason = make_base()
    if reason is not None:
        return reason
    imported = _podman(environment, "import", str(ARCHIVE), BASE)
    return f"podman does not work: {imported.stderr[-200:]}" if imported.returncode else None


def _podman(environment, *arguments):
    return subprocess.run(
        ["podman", *arguments],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, **environment},
    )
