"""Real images and containers: built with podman, looked into, started, called, and sent to a registry.

One file, so that all of it uses one store of images and few of them are built.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from chainrule.client import Component
from chainrule.compat import tesseract_core as tc
from chainrule.deploy.catalogue import Catalogue, Query, push_image
from chainrule.deploy.images import build_image, find_engine, list_containers, plan_build
from chainrule.deploy.kubernetes import pinned_image
from chainrule.errors import CapabilityError, DefinitionError, InputError, TransportError
from chainrule.runtime import ComponentConfig, load_component
from chainrule.runtime.experimental import ComponentReference
from chainrule.runtime.internal import outside_config
from deploy import container_engine
from deploy import image_components as samples
from waiting import wait_until

pytestmark = [pytest.mark.container, pytest.mark.slow]

inside, write = samples.inside, samples.write
SETTINGS = {"base": container_engine.BASE, "build_env": container_engine.BUILD_ENV}
CHECKS = {"run_tests": True, "check_gradients": "point.json"}


@pytest.fixture(scope="module", autouse=True)
def engine():
    """podman, with a store of images that is empty but for the base image."""
    with container_engine.podman("images"):
        found = find_engine()
        yield found
        assert list_containers(found) == []  # no container outlives the tests


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("components")


@pytest.fixture(scope="module")
def square(engine, folders):
    """The image of a NumPy component, its tests and gradients checked while it was built."""
    folder = write(folders / "square", samples.square_files())
    lines = []
    built = build_image(plan_build(folder, **CHECKS, **SETTINGS), on_line=lines.append)
    assert built.was_built
    assert any("test_apply.json: passed" in line for line in lines)
    return built


@pytest.fixture(scope="module")
def image(square):
    """Its name."""
    return square.tags[0]


def test_an_unchanged_component_is_not_built_again(square, folders):
    again = build_image(
        plan_build(folders / "square", **CHECKS, **SETTINGS), tags=[":other"], on_line=pytest.fail
    )
    assert not again.was_built
    assert again.tags == (square.tags[0], "square:other")
    assert again.labels == square.labels


def test_the_same_content_gives_the_same_layers(engine, square, folders):
    fresh = dataclasses.replace(engine, build_args=(*engine.build_args, "--no-cache"))
    again = build_image(
        plan_build(folders / "square", **CHECKS, **SETTINGS), tags=["again:1"], engine=fresh
    )
    assert again.was_built
    one, other = (engine.inspect("image", built.tags[0]) for built in (square, again))
    assert one["RootFS"] == other["RootFS"]


def test_what_an_image_says_of_itself(engine, square, folders):
    labels = square.labels
    assert labels["chainrule.component"] == "square"
    assert labels["org.opencontainers.image.version"] == "1.2.0"
    document = load_component(folders / "square").openapi_schema
    interface = {key: document[key] for key in ("paths", "components")}
    text = json.dumps(interface, sort_keys=True, separators=(",", ":"))
    assert labels["chainrule.schema-hash"] == hashlib.sha256(text.encode()).hexdigest()
    assert square.tags[0] == f"square:{labels['chainrule.context-hash']}"
    facts = engine.inspect("image", square.tags[0])
    assert facts["Config"]["User"] == "10001:10001"
    assert facts["Healthcheck"]["Test"][0] == "CMD"
    assert not any("CERT" in entry for entry in facts["Config"]["Env"])
    bill = json.loads(inside(engine, square.tags[0], "cat", labels["chainrule.sbom"]))
    assert bill["bomFormat"] == "CycloneDX"
    purls = {part["purl"].split("@")[0] for part in bill["components"]}
    assert {"pkg:pypi/numpy", "pkg:pypi/chainrule", "pkg:deb/debian/python3-minimal"} <= purls
    # What the lock file says, not what a resolver would say.
    assert "pkg:pypi/six@1.16.0" in {part["purl"] for part in bill["components"]}


def test_what_is_in_an_image_and_what_is_not(engine, square):
    folders = ["/component", "/opt", "/opt/venv/bin", "/opt/venv/lib/python3*/site-packages/numpy"]
    listing = inside(engine, square.tags[0], "sh", "-c", f"find {' '.join(folders)} -maxdepth 2")
    assert "/component/__pycache__/component.cpython" in listing
    assert "numpy/__pycache__/__init__.cpython" in listing
    assert ".env" not in listing
    assert "/opt/uv" not in listing


def test_a_jax_component_answers_from_its_image(engine, folders):
    files = {"component.py": samples.JAX, "requirements.txt": "jax\n"}
    # Its layers are large, and no other test would use them again.
    whole = dataclasses.replace(engine, build_args=(*engine.build_args, "--layers=false"))
    built = build_image(plan_build(write(folders / "wave", files), **SETTINGS), engine=whole)
    with Component.from_image(built.tags[0], network="host") as component:
        x = np.linspace(0, 1, 5, dtype=np.float32)
        found = component.jacobian_vector_product(
            {"x": x}, ["x"], ["result"], {"x": np.ones_like(x)}
        )
        np.testing.assert_allclose(found["result"], np.cos(x), rtol=1e-6)


@pytest.fixture
def newer(engine, folders):
    """Settings for another Python than the base image's own, where this machine has one to give away."""
    candidates = sorted(Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python3"))
    if not candidates:
        return SETTINGS
    home = candidates[0].parents[1]
    recipe = f"""
    FROM {container_engine.BASE}
    COPY . /opt/other
    ENV PATH=/opt/other/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/other/lib
    """
    left_out = [
        "include",
        "share",
        "lib/*.a",
        "lib/**/test",
        "lib/**/__pycache__",
        "lib/*/site-packages",
    ]
    write(folders, {"recipe": recipe})
    (folders / "ignore").write_text("\n".join(left_out))
    engine.ask(
        "build", "--layers=false", "--file", str(folders / "recipe"), "--ignorefile",
        str(folders / "ignore"), "--tag", "localhost/other-python:1", str(home),
    )  # fmt: skip
    version = home.name.rpartition(".")[0]
    return SETTINGS | {"base": "localhost/other-python:1", "python": version}


def test_an_executable_answers_from_its_image_and_secrets_stay_out_of_it(engine, folders, newer):
    token = os.urandom(16).hex()
    files = {
        "component.yaml": samples.COMMAND,
        "double": samples.DOUBLE,
        "factor.txt": "2",
        "requirements.txt": "setuptools\n./helper\n",
        "helper/setup.py": samples.HELPER.format(digest=hashlib.sha256(token.encode()).hexdigest()),
    }
    plan = plan_build(write(folders / "doubling", files), **newer)
    (folders / "token.txt").write_text(token)
    secret = f"id=BUILD_TOKEN,src={folders / 'token.txt'}"
    lines = []
    whole = dataclasses.replace(engine, build_args=(*engine.build_args, "--layers=false"))
    built = build_image(plan, engine=whole, secrets=[secret], on_line=lines.append)
    assert "doubling:0.3.0" in built.tags
    with Component.from_image(built.tags[0], network="host") as component:
        np.testing.assert_allclose(component.apply({"x": [1.0, 2.0]})["y"], [2.0, 4.0])
        jacobian = component.jacobian({"x": [1.0, 2.0]}, ["x"], ["y"])["y"]["x"]
        np.testing.assert_allclose(jacobian, 2 * np.eye(2), rtol=1e-6)
    script = "cat /opt/made.txt; printenv GREETING; ls -d /usr/bin/tini /opt/venv/lib/*/*/doubling_helper*"
    seen = inside(engine, built.tags[0], "sh", "-c", script)
    assert seen.splitlines()[:2] == ["made", "cost: $5"]
    assert "/usr/bin/tini" in seen
    assert "doubling_helper-4.5.6.dist-info" in seen
    version = inside(engine, built.tags[0], "/opt/venv/bin/python", "--version")
    assert version.startswith(f"Python {newer.get('python', '3.')}")
    assert token not in "\n".join(lines)
    assert token not in engine.ask("history", "--no-trunc", built.tags[0])
    assert not _is_anywhere(engine, built.tags[0], token, folders / "doubling.tar")


def _is_anywhere(engine, image, text, archive):
    """Whether a text is in any file of any layer, or in the configuration, of an image."""
    engine.ask("save", "--output", str(archive), image)
    try:
        with tarfile.open(archive) as layers:
            return any(
                _contains(layers.extractfile(m), text.encode()) for m in layers if m.isfile()
            )
    finally:
        archive.unlink()


def _contains(file, needle):
    tail = b""
    while chunk := file.read(1 << 22):
        if needle in tail + chunk:
            return True
        tail = chunk[-len(needle) :]
    return False


def test_requirements_that_do_not_exist(folders):
    files = {"component.py": samples.SQUARE, "requirements.txt": "chainrule-no-such-package==1\n"}
    with pytest.raises(DefinitionError, match="requirements cannot be installed") as caught:
        build_image(plan_build(write(folders / "bad", files), **SETTINGS))
    assert caught.value.code == "build_failed"
    assert caught.value.details["step"] == "requirements"
    assert "chainrule-no-such-package" in caught.value.message


def test_a_component_that_crashes_at_import(engine, folders):
    files = {"component.py": "raise ValueError('no licence server')\n", "pylock.toml": samples.LOCK}
    folder = write(folders / "crash", files)
    with pytest.raises(DefinitionError, match="no licence server") as caught:
        build_image(plan_build(folder, **SETTINGS))
    assert caught.value.details["step"] == "component"
    # Built without the check, it fails when it is started, and its log says why.
    built = build_image(plan_build(folder, check=False, **SETTINGS))
    with pytest.raises(Exception, match="no licence server") as caught:
        Component.from_image(built.tags[0], network="host")
    assert caught.value.code == "container_failed"
    assert list_containers(engine) == []


def test_wrong_results_and_wrong_gradients_fail_the_build(square, folders):
    files = samples.square_files(expected=10.0)
    folder = write(folders / "wrong", files)
    with pytest.raises(DefinitionError, match=r"test_apply\.json") as caught:
        build_image(plan_build(folder, run_tests=True, **SETTINGS))
    assert caught.value.details["step"] == "regression tests"
    (folder / "component.py").write_text(samples.SQUARE.replace("2 * inputs.x", "3 * inputs.x"))
    with pytest.raises(DefinitionError, match="not those of apply") as caught:
        build_image(plan_build(folder, check_gradients="point.json", **SETTINGS))
    assert caught.value.details["step"] == "gradient check"


@pytest.fixture
def registry(engine, tmp_path, monkeypatch):
    """The address of a registry on loopback."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
    }
    (tmp_path / "registry.json").write_text(json.dumps(settings))
    # Without TLS podman talks to a registry only where it is told to.
    (tmp_path / "registries.conf").write_text(
        f'[[registry]]\nlocation = "{address}"\ninsecure = true\n'
    )
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    command = ["docker-registry", "serve", str(tmp_path / "registry.json")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    host, port = address.split(":")
    wait_until(lambda: process.poll() is not None or _is_open(host, int(port)))
    assert process.poll() is None, "the registry does not start"
    yield address
    process.terminate()
    process.wait()


def _is_open(host, port):
    with closing(socket.socket()) as probe:
        return probe.connect_ex((host, port)) == 0


def test_images_go_to_a_registry_and_come_back(engine, square, folders, registry):
    name = f"{registry}/team/square:1.2.0"
    command = [
        sys.executable,
        "-m",
        "chainrule",
        "build",
        str(folders / "square"),
        "--push",
        "--json",
    ]
    command += ["--base", SETTINGS["base"], "--run-tests", "--check-gradients", "point.json"]
    for variable, value in SETTINGS["build_env"].items():
        command += ["--build-env", f"{variable}={value}"]
    done = subprocess.run(
        [*command, "--tag", name], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr
    tags = json.loads(done.stdout)["tags"]
    assert tags == [name.replace("1.2.0", square.tags[0].partition(":")[2]), name]
    engine.ask("rmi", *tags)
    assert not engine.succeeds("image", "inspect", name)
    with Component.from_image(name, network="host") as component:
        assert component.transport.place.endswith(f"(image {name})")
        np.testing.assert_array_equal(component.apply({"x": [3.0]})["y"], [9.0])
        assert engine.inspect("image", name)["Config"]["Labels"] == dict(square.labels)
    with pytest.raises(CapabilityError, match="cannot pull") as caught:
        Component.from_image(f"{registry}/team/circle:1")
    assert caught.value.code == "image_missing"
    with pytest.raises(CapabilityError, match="--base") as caught:
        build_image(plan_build(folders / "square", base=f"{registry}/library/python:3.12-slim"))
    assert caught.value.code == "base_missing"


def test_an_image_is_pushed_with_its_interface(engine, square, folders, registry):
    name = f"{registry}/shelf/square:1.2.0"
    engine.ask("tag", square.tags[0], name)
    pushed = push_image(name, owner="geometry", engine=engine)
    assert pushed.was_pushed
    assert pushed.entry.image == pinned_image(name)
    (found,) = Catalogue(f"{registry}/shelf").search(Query(inputs=("x",), text="geometry"))
    assert found == pushed.entry
    assert not push_image(name, engine=engine).was_pushed
    # The next version has no field `x` any more: its callers would break.
    broken = name.replace("1.2.0", "1.3.0")
    changes = r"sed -i 's/1\.2\.0/1.3.0/; s/\bx\b/z/g' component.py"
    recipe = f"FROM {name}\nUSER 0\nWORKDIR /component\nRUN {changes}\nUSER 10001:10001\n"
    folder = str(write(folders / "broken", {"Containerfile": recipe}))
    engine.ask("build", *engine.build_args, "--tag", broken, folder)
    with pytest.raises(
        InputError, match=r"(?s)inputs\.x: the field was removed.*--allow-breaking"
    ) as refused:
        push_image(broken, engine=engine)
    assert refused.value.code == "breaks_callers"
    assert Catalogue(f"{registry}/shelf").entries() == [pushed.entry]
    assert push_image(broken, allow_breaking=True, engine=engine).entry.version == "1.3.0"
    engine.ask("rmi", name, broken)


def test_a_numpy_component_answers_from_its_image(engine, image, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "note").write_text("hello\n")
    options = {"memory": "1g", "volumes": {tmp_path: "/data"}, "env": {"LEVEL": "3"}}
    with Component.from_image(image, network="host", **options) as component:
        x = np.arange(4.0)
        assert component.version == "1.2.0"
        np.testing.assert_array_equal(component.apply({"x": x})["y"], x**2)
        gradient = component.vector_jacobian_product({"x": x}, ["x"], ["y"], {"y": np.ones(4)})
        np.testing.assert_array_equal(gradient["x"], 2 * x)
        container = component.transport.container
        # A caller without the token gets its health and nothing else.
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


def test_a_reference_to_an_image_is_opened_where_it_is_allowed(image):
    reference = {"type": "image", "ref": image}
    adapter = TypeAdapter(ComponentReference)
    with pytest.raises(ValueError, match="allow_references"):
        adapter.validate_python(reference)
    outside = outside_config.set(ComponentConfig(allow_references={"image"}))
    component = adapter.validate_python(reference)
    outside_config.reset(outside)
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


def test_a_container_ends_with_its_owner_however_that_ends(engine, image):
    start = (
        "import os, signal; from chainrule.client import Component; "
        f"c = Component.from_image({image!r}, network='host'); "
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
        name = owner.communicate(timeout=1200)[0].strip()
        assert (owner.returncode, bool(name)) == (ENDS[how][1], True), how
        wait_until(
            lambda name=name: not engine.succeeds("container", "inspect", name),
            f"the end of the container after {how}",
        )
    with contextlib.suppress(KeyError), Component.from_image(image, network="host") as component:
        container = component.transport.container
        raise KeyError
    assert not container.is_running


def chainrule(*arguments):
    command = [sys.executable, "-m", "chainrule", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200)


def test_the_command_line_runs_lists_and_stops(image):
    once = chainrule("image", "run", image, "apply", '{"inputs": {"x": [3]}}')
    assert json.loads(once.stdout)["y"]["data"]["buffer"] == [9.0], once.stderr
    assert chainrule("image", "run", image, "apply", '{"inputs": {"x": "a"}}').returncode == 2
    started = json.loads(chainrule("image", "run", image, "--network", "host", "--json").stdout)
    name = started["container"]
    with Component.from_url(started["url"], token=started["token"]) as component:
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
    with Component.from_image(image, reuse=True) as component:
        assert component.transport.container.name == name
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
    listed = json.loads(chainrule("image", "ps", "--json").stdout)
    assert [(row["container"], row["state"]) for row in listed] == [(name, "running")]
    assert "Serving at" in chainrule("image", "logs", name).stdout
    images = json.loads(chainrule("image", "list", "--json").stdout)
    assert any(image in row["image"] for row in images)
    assert chainrule("image", "stop", name, "no-such-container").returncode == 2
    assert json.loads(chainrule("image", "stop", "--all", "--json").stdout) == {"stopped": [name]}
    assert json.loads(chainrule("image", "ps", "--json").stdout) == []


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there are devices here")
def test_devices_that_are_not_here(engine, image):
    with pytest.raises(CapabilityError, match="nvidiactl is not here") as caught:
        Component.from_image(image, network="host", gpus="all")
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
    built = tc.build_tesseract(folder, "mine", config_override=override)
    assert built.tags == ["old:mine"]
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
