"""Docker as the engine: a daemon of our own, for the time of the test."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from chainrule.client import Component
from chainrule.deploy.images import build_image, find_engine, list_containers, plan_build
from chainrule.errors import CapabilityError
from deploy import container_engine
from deploy import image_components as samples

pytestmark = [pytest.mark.container, pytest.mark.slow]

BASE = "chainrule-test-base:docker"


def _client():
    """A docker command that builds with BuildKit: an old one does so itself, a newer one by a plugin."""
    for command in ("/usr/bin/docker", shutil.which("docker") or ""):
        if not os.path.exists(command):
            continue
        said = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
        version = re.search(r"version (\d+)", said)
        has_plugin = subprocess.run([command, "buildx", "version"], capture_output=True)
        if (version and int(version[1]) < 23) or has_plugin.returncode == 0:
            return command
    return None


@pytest.fixture(scope="module")
def engine():
    client = _client()
    if client is None or shutil.which("dockerd") is None:
        pytest.skip("no dockerd, or no docker that builds with BuildKit")
    if os.getuid() != 0:
        pytest.skip("a daemon of our own needs root")
    reason = container_engine.make_base()
    if reason is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="docker"))
    with pytest.MonkeyPatch.context() as patch, (folder / "log").open("w") as log:
        patch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
        patch.setenv("CHAINRULE_ENGINE", client)
        patch.setenv("CHAINRULE_BUILD_ARGS", "--network host")
        daemon = subprocess.Popen(_daemon(folder), stdout=log, stderr=log)
        try:
            found = find_engine()
            _wait(found, daemon, folder / "log")
            _load_base(found, folder)
            yield found
            assert list_containers(found) == []
        finally:
            daemon.terminate()
            daemon.wait(60)
            container_engine.remove(folder)


def _daemon(folder):
    return [
        "dockerd", "--host", f"unix://{folder}/docker.sock", "--data-root", str(folder / "data"),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"),
        "--iptables=false", "--bridge=none", "--storage-driver", "overlay2",
    ]  # fmt: skip


def _wait(engine, daemon, log):
    deadline = time.monotonic() + 600
    while not engine.succeeds("version"):
        if daemon.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"dockerd cannot be started here: {log.read_text()[-300:]}")
        time.sleep(0.1)


def _load_base(engine, folder):
    """The base image, with the host's certificates: docker's `build` mounts nothing of the host."""
    engine.ask("import", str(container_engine.ARCHIVE), "base")
    recipe = f"FROM base\nCOPY {container_engine.BUNDLE.name} {container_engine.BUNDLE}\n"
    context = samples.write(folder / "base", {"Dockerfile": recipe})
    shutil.copy(container_engine.BUNDLE, context)
    code, lines = engine.stream(["build", "--tag", BASE, str(context)], lambda line: None)
    assert code == 0, lines


def test_docker_builds_and_runs_a_component(engine, tmp_path):
    folder = samples.write(tmp_path / "square", samples.square_files())
    settings = {"base": BASE, "build_env": container_engine.BUILD_ENV, "run_tests": True}
    lines = []
    built = build_image(plan_build(folder, **settings), on_line=lines.append)
    assert any("test_apply.json: passed" in line for line in lines)
    assert not build_image(plan_build(folder, **settings)).was_built
    assert len(built.labels["chainrule.schema-hash"]) == 64
    facts = engine.inspect("image", built.tags[0])["Config"]
    assert facts["User"] == "10001:10001"
    assert facts["Healthcheck"]["Test"][0] == "CMD"
    with Component.from_image(built.tags[0], network="host", memory="1g") as component:
        x = np.arange(4.0)
        np.testing.assert_array_equal(component.apply({"x": x})["y"], x**2)
        gradient = component.vector_jacobian_product({"x": x}, ["x"], ["y"], {"y": np.ones(4)})
        np.testing.assert_array_equal(gradient["x"], 2 * x)
        container = component.transport.container
        assert [facts.name for facts in list_containers(engine)] == [container.name]
        assert "Serving" in container.log()
    assert not container.is_running
    if not os.path.exists("/dev/nvidiactl"):
        with pytest.raises(CapabilityError) as caught:
            Component.from_image(built.tags[0], network="host", gpus=[0])
        assert caught.value.code == "gpus_unavailable"
