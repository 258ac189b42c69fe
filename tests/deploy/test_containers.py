"""Real containers: images started with podman, called, and gone whatever happens to their owner."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from pydantic import TypeAdapter

from chainrule._errors import CapabilityError, InputError, TransportError
from chainrule.client import Component
from chainrule.compat import tesseract_core as tc
from chainrule.deploy.images import build_image, find_engine, list_containers, plan_build
from chainrule.runtime import ComponentConfig
from chainrule.runtime._runs import activate
from chainrule.runtime.experimental import ComponentReference
from chainrule.runtime.internal import Run
from deploy import container_engine
from deploy import image_components as samples

pytestmark = [pytest.mark.container, pytest.mark.slow]

SETTINGS = {"base": container_engine.BASE, "build_env": container_engine.BUILD_ENV}


@pytest.fixture(scope="module", autouse=True)
def engine():
    """podman, with a store of images of this file's own; no container outlives the tests."""
    with container_engine.podman("containers"):
        found = find_engine()
        yield found
        assert list_containers(found) == []


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("components")


@pytest.fixture(scope="module")
def square(engine, folders):
    folder = samples.write(folders / "square", {"component.py": samples.SQUARE})
    return build_image(plan_build(folder, **SETTINGS)).tags[0]


def test_a_numpy_component_answers_from_its_image(engine, square, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "note").write_text("hello\n")
    options = {"memory": "1g", "volumes": {tmp_path: "/data"}, "env": {"LEVEL": "3"}}
    with Component.from_image(square, network="host", **options) as component:
        x = np.arange(4.0)
        assert component.version == "1.2.0"
        np.testing.assert_array_equal(component.apply({"x": x})["y"], x**2)
        gradient = component.vector_jacobian_product({"x": x}, ["x"], ["y"], {"y": np.ones(4)})
        np.testing.assert_array_equal(gradient["x"], 2 * x)
        container = component.transport.container
        # Whoever has no token gets nothing but its health.
        with pytest.raises(Exception, match="token"):
            Component.from_url(container.url).apply({"x": x})
        assert engine.succeeds("healthcheck", "run", container.name)
        assert "Serving" in container.log()
        script = "id -u; printenv LEVEL; cat /data/note; grep ' /data ' /proc/mounts"
        *seen, mount = engine.ask("exec", container.name, "sh", "-c", script).splitlines()
        assert seen == ["10001", "3", "hello"]
        assert "ro" in mount.split()[3].split(",")
        assert engine.inspect("container", container.name)["HostConfig"]["Memory"] == 1 << 30
        with pytest.raises(TransportError):
            component.apply({"x": np.zeros(13)})  # ends its worker, not the container
        np.testing.assert_array_equal(component.apply({"x": x})["y"], x**2)
    assert not container.is_running


def test_a_reference_to_an_image_is_opened_where_it_is_allowed(square):
    reference = {"type": "image", "ref": square}
    adapter = TypeAdapter(ComponentReference)
    with pytest.raises(ValueError, match="allow_references"):
        adapter.validate_python(reference)
    with activate(Run(ComponentConfig(allow_references={"image"}))):
        component = adapter.validate_python(reference)
    try:
        np.testing.assert_array_equal(component.apply({"x": [3.0]})["y"], [9.0])
    finally:
        component.close()


ENDS = {
    "the end of the program": ("pass", 0),
    "an exception": ("raise RuntimeError('mesh is empty')", 1),
    "an exit without a word": ("os._exit(5)", 5),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
}


def test_a_container_ends_with_its_owner_however_that_ends(engine, square):
    start = (
        "import os, signal; from chainrule.client import Component; "
        f"c = Component.from_image({square!r}, network='host'); "
        "print(c.transport.container.name, flush=True); "
    )
    owners = {
        how: subprocess.Popen(
            [sys.executable, "-c", start + last_words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for how, (last_words, _) in ENDS.items()
    }
    for how, owner in owners.items():
        name = owner.communicate(timeout=180)[0].strip()
        assert (owner.returncode, bool(name)) == (ENDS[how][1], True), how
        deadline = time.monotonic() + 600
        while engine.succeeds("container", "inspect", name):
            assert time.monotonic() < deadline, f"the container is still there after {how}"
            time.sleep(0.1)
    with contextlib.suppress(KeyError), Component.from_image(square, network="host") as component:
        container = component.transport.container
        raise KeyError
    assert not container.is_running


def chainrule(*arguments):
    command = [sys.executable, "-m", "chainrule", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_line_runs_lists_and_stops(square):
    once = chainrule("image", "run", square, "apply", '{"inputs": {"x": [3]}}')
    assert json.loads(once.stdout)["y"]["data"]["buffer"] == [9.0], once.stderr
    assert chainrule("image", "run", square, "apply", '{"inputs": {"x": "a"}}').returncode == 2
    started = json.loads(chainrule("image", "run", square, "--network", "host", "--json").stdout)
    name = started["container"]
    with Component.from_url(started["url"], token=started["token"]) as component:
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
    with Component.from_image(square, reuse=True) as component:
        assert component.transport.container.name == name
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
    listed = json.loads(chainrule("image", "ps", "--json").stdout)
    assert [(row["container"], row["state"]) for row in listed] == [(name, "running")]
    assert "Serving at" in chainrule("image", "logs", name).stdout
    images = json.loads(chainrule("image", "list", "--json").stdout)
    assert any(square in row["image"] for row in images)
    assert chainrule("image", "stop", name, "no-such-container").returncode == 2
    assert json.loads(chainrule("image", "stop", "--all", "--json").stdout) == {"stopped": [name]}
    assert json.loads(chainrule("image", "ps", "--json").stdout) == []


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there are devices here")
def test_devices_that_are_not_here(engine, square):
    with pytest.raises(CapabilityError, match="nvidiactl is not here") as caught:
        Component.from_image(square, network="host", gpus="all")
    assert caught.value.code == "gpus_unavailable"
    assert list_containers(engine) == []


def test_images_that_are_not_there_or_not_components(engine):
    with pytest.raises(CapabilityError, match="no-such-image") as missing:
        Component.from_image("localhost/no-such-image:1")
    assert missing.value.code == "image_missing"
    with pytest.raises(InputError, match="no component") as other:
        Component.from_image(container_engine.BASE)
    assert other.value.code == "not_a_component_image"


def test_folders_of_tesseract_core_become_images(folders):
    config = "name: old\nversion: 2.0.0\nbuild_config: {}\n"
    files = {"tesseract_api.py": samples.API, "tesseract_config.yaml": config}
    folder = samples.write(folders / "old", files)
    override = {
        ("build_config", "base_image"): container_engine.BASE,
        ("build_config", "build_env"): SETTINGS["build_env"],
    }
    image = tc.build_tesseract(folder, "mine", config_override=override)
    assert image.tags == ["old:mine"]
    with tc.Tesseract.from_image("old:mine", network="host") as tesseract:
        np.testing.assert_array_equal(tesseract.apply({"x": [2.0]})["y"], [4.0])
        assert "Serving" in tesseract.server_logs()
        assert tesseract.container_info().is_running
    stdout, _ = tc.run_tesseract("old:mine", "apply", ['{"inputs": {"x": [3]}}'])
    assert json.loads(stdout)["y"]["data"]["buffer"] == [9.0]


@pytest.fixture
def peer_image(engine, folders):
    """An image by the recipe that tesseract-core itself writes; uv comes from PyPI instead of a registry."""
    sdk = pytest.importorskip("tesseract_core.sdk.engine")
    parse = pytest.importorskip("tesseract_core.sdk.api_parse")
    bundle = container_engine.BUNDLE
    tools = f"""
    FROM {container_engine.BASE} AS tools
    RUN --mount=type=cache,target=/build-cache export PIP_CACHE_DIR=/build-cache/pip PIP_CERT={bundle} \\
        && python3 -m venv /opt/uv && /opt/uv/bin/pip install --quiet uv
    FROM scratch
    COPY --from=tools /opt/uv/bin/uv /opt/uv/bin/uvx /
    """
    uv = samples.write(folders / "uv", {"Containerfile": tools})
    engine.ask("build", *engine.build_args, "--layers=false", "--tag", "localhost/uv:1", str(uv))
    config = {
        "name": "peer",
        "version": "3.0.0",
        "build_config": {
            "base_image": container_engine.BASE,
            "build_env": container_engine.BUILD_ENV,
        },
    }
    files = {"tesseract_api.py": samples.API, "tesseract_config.yaml": json.dumps(config)}
    source = samples.write(folders / "peer", files)
    context = sdk.prepare_build_context(source, folders / "context", parse.get_config(source))
    engine.ask(
        "build", *engine.build_args, "--layers=false", "--build-arg", "UV_URL=localhost/uv:1",
        "--tag", "peer:3", str(context),
    )  # fmt: skip
    return "peer:3"


def test_images_of_tesseract_core_run_too(peer_image):
    with Component.from_image(peer_image, network="host") as component:
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
        assert (component.name, component.version) == ("peer", "3.0.0")
    name, container = tc.serve(peer_image, network="host")
    try:
        assert container.token is None
        tesseract = tc.Tesseract.from_url(container.url)
        found = tesseract.vector_jacobian_product({"x": [2.0]}, ["x"], ["y"], {"y": [1.0]})
        np.testing.assert_array_equal(found["x"], [4.0])
    finally:
        tc.teardown([name])
    once = chainrule("image", "run", peer_image, "apply", '{"inputs": {"x": [3]}}')
    assert json.loads(once.stdout)["y"]["data"]["buffer"] == [9.0], once.stderr
