"""podman without root: a user who may do nothing else builds an image and runs it.

Run by root, the test makes that user and removes it again.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import chainrule
from deploy import container_engine
from deploy import image_components as samples

pytestmark = [pytest.mark.container, pytest.mark.slow]


PROGRAM = """
import json, os, sys
import numpy as np
from chainrule.client import Component
from chainrule.deploy.images import build_image, find_engine, list_containers, plan_build

folder, base, build_env = json.loads(sys.argv[1])
built = build_image(plan_build(folder + "/square", base=base, build_env=build_env))
with Component.from_image(built.tags[0], network="host", output_path=folder + "/out") as component:
    found = component.apply({"x": np.array([3.0])})["y"].tolist()
    container = component.transport.container
    container.engine.ask("exec", container.name, "touch", "/output/file")
is_mine = os.stat(folder + "/out/file").st_uid == os.getuid() != 0
left = len(list_containers(find_engine()))
print(json.dumps({"found": found, "is_mine": is_mine, "left": left}))
"""


@pytest.fixture
def user():
    """The name of a user with a range of identities for containers."""
    tools = ("podman", "runc", "newuidmap", "useradd", "runuser")
    missing = [name for name in tools if not shutil.which(name)]
    if missing or os.getuid() != 0:
        pytest.skip(f"{missing[0]} is not installed" if missing else "only root can make a user")
    reason = container_engine.make_base()
    if reason is not None:
        pytest.skip(reason)
    name = f"chainrule-{secrets.token_hex(3)}"
    made = subprocess.run(["useradd", "--no-create-home", name], capture_output=True, text=True)
    try:
        if made.returncode or name not in Path("/etc/subuid").read_text():
            pytest.skip(f"no user with identities for containers can be made: {made.stderr}")
        yield name
    finally:
        subprocess.run(["userdel", "--force", name], capture_output=True)


@pytest.fixture
def home():
    folder = Path(tempfile.mkdtemp(prefix="rootless"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _as(user, home):
    """How to run a command as that user, with an engine of its own."""
    settings = container_engine.write_settings(home)
    packages = [
        Path(chainrule.__file__).parents[1],
        *(path for path in sys.path if "site-packages" in path),
    ]
    environment = settings | {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "XDG_RUNTIME_DIR": str(home),
    }
    shutil.chown(home, user)
    assignments = [f"{name}={value}" for name, value in environment.items()]
    return [
        "runuser",
        "--user",
        user,
        "--",
        "env",
        "--ignore-environment",
        f"--chdir={home}",
        *assignments,
    ]


def _python(prefix):
    """An interpreter that the user may run and that has our packages; root's own may lie in root's home."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        tried = [*prefix, python, "-c", "import chainrule, numpy, pydantic, orjson"]
        if subprocess.run(tried, capture_output=True).returncode == 0:
            return python
    return pytest.skip("no Python here that other users may run")


def test_a_user_without_rights_builds_and_runs(user, home):
    prefix = _as(user, home)
    python = _python(prefix)
    samples.write(home / "square", {"component.py": samples.SQUARE})
    with container_engine.ARCHIVE.open("rb") as archive:
        imported = subprocess.run(
            [*prefix, "podman", "import", "-", container_engine.BASE],
            stdin=archive,
            capture_output=True,
        )
    if imported.returncode:
        pytest.skip(f"podman does not work without root here: {imported.stderr[-300:]!r}")
    order = json.dumps([str(home), container_engine.BASE, container_engine.BUILD_ENV])
    done = subprocess.run(
        [*prefix, python, "-c", PROGRAM, order], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts = {"found": [9.0], "is_mine": True, "left": 0}
    assert json.loads(done.stdout.splitlines()[-1]) == facts
