"""A container engine and a base image for tests, wherever podman can be made to work.

There may be no registry and no daemon: the base image is bootstrapped from Debian's packages, and podman gets
settings that also work as root inside a container. Both are kept in the user's cache between runs.
"""

import os
import shutil
import subprocess
from pathlib import Path

BASE = "localhost/chainrule-test-base:bookworm"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chainrule" / "containers"
BUNDLE = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))

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
graphroot = "{cache}/storage"
runroot = "{cache}/run"
"""


def settings():
    """Variables under which `podman` and `chainrule build` work here; the files they name are written."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "containers.conf").write_text(_CONTAINERS_CONF)
    (CACHE / "storage.conf").write_text(_STORAGE_CONF.format(cache=CACHE))
    return {
        "CONTAINERS_CONF": str(CACHE / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(CACHE / "storage.conf"),
        "CHAINRULE_ENGINE": "podman",
        # The host's certificates, for the installation only: a proxy may sign with its own.
        "CHAINRULE_BUILD_ARGS": f"--isolation chroot --network host -v {BUNDLE}:{BUNDLE}:ro",
    }


def why_not(environment):
    """Why there is no engine here; `None` when there is one, with the base image in place."""
    tools = [tool for tool in ("podman", "runc") if shutil.which(tool) is None]
    if tools:
        return f"{tools[0]} is not installed"
    if os.getuid() != 0:
        return "the tests' storage of images needs root"
    _podman(environment, "rm", "--force", "--all")  # what a run that was killed has left
    if _podman(environment, "image", "exists", BASE).returncode == 0:
        return None
    if shutil.which("mmdebstrap") is None:
        return "there is no base image, and no mmdebstrap to make one"
    return _make_base(environment)


def _make_base(environment):
    archive = CACHE / "base.tar"
    packages = "python3-minimal,python3-venv,ca-certificates"
    command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(archive)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=150)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"no base image can be made: {(error.stderr or b'')[-200:]!r}"
    imported = _podman(environment, "import", str(archive), BASE)
    archive.unlink()
    return f"podman does not work: {imported.stderr[-200:]}" if imported.returncode else None


def _podman(environment, *arguments):
    return subprocess.run(
        ["podman", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
