"""Real images: built and run with podman."""

import dataclasses
import importlib.util
import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from chainrule._errors import (
    CapabilityError,
    DefinitionError,
    InputError,
    TransportError,
)
from chainrule.client import Component
from chainrule.compat import tesseract_core as tc
from chainrule.deploy.images import (
    build_image,
    find_engine,
    list_containers,
    list_images,
    plan_build,
)
from chainrule.runtime import ComponentConfig
from chainrule.runtime._references import ComponentReference
from chainrule.runtime._runs import Run, activate

pytestmark = [pytest.mark.container, pytest.mark.slow]


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


container_engine = _load("container_engine")
BUNDLE = str(container_engine.BUNDLE)
SETTINGS = {
    "base": container_engine.BASE,
    "build_env": {"SSL_CERT_FILE": BUNDLE, "PIP_CERT": BUNDLE},
}

SQUARE = '''
"""Squares numbers."""

import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable

__version__ = "1.2.0"

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), "float64"]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), "float64"]]

def apply(inputs):
    if inputs.x.size == 13:
        import os
        os._exit(3)
    return {"y": inputs.x**2}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * inputs.x * cotangent_vector["y"]}
'''

JAX = """
import jax
import jax.numpy as jnp
from chainrule import component
from chainrule.runtime import Array, Differentiable, Float32

@component
@jax.jit
def wave(x: Differentiable[Array[("n",), Float32]]) -> Differentiable[Array[("n",), Float32]]:
    return jnp.sin(x)
"""

# The executable needs nothing that a small Debian does not have.
COMMAND = """
name: doubling
version: 0.3.0
command: [./double, "{input}", "{output}"]
inputs: {x: "differentiable float64[n]"}
outputs: {y: "differentiable float64[n]"}
derivatives: finite
build:
  package_data: [[factor.txt, /opt/factor.txt]]
  env: {GREETING: "cost: $5"}
  steps: ["RUN echo made > /opt/made.txt"]
"""
DOUBLE = """\
#!/usr/bin/env python3
import json, sys
given = json.load(open(sys.argv[1]))
x = given["x"]
values = x["data"]["buffer"] if isinstance(x, dict) else x
factor = float(open("/opt/factor.txt").read())
json.dump({"y": [factor * value for value in values]}, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module", autouse=True)
def engine():
    """An engine with a base image; what the tests build and start is removed again."""
    environment = container_engine.settings()
    reason = container_engine.why_not(environment)
    if reason is not None:
        pytest.skip(f"no container engine here: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        found = find_engine()
        yield found
        assert list_containers(found) == []
        found.succeeds("rmi", "--force", *(image.id for image in list_images(found)))


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text).lstrip())
        if text.startswith("#!"):
            (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("components")


@pytest.fixture(scope="module")
def square(engine, folders):
    """The image of a NumPy component, its tests and gradients checked while it was built."""
    case = {
        "endpoint": "apply",
        "payload": {"inputs": {"x": [1.0, 3.0]}},
        "expected_outputs": {"y": [1.0, 9.0]},
    }
    files = {
        "component.py": SQUARE,
        "test_cases/test_apply.json": json.dumps(case),
        "point.json": json.dumps({"inputs": {"x": [1.0, 3.0]}}),
        ".env": "PASSWORD=secret",
    }
    folder = write(folders / "square", files)
    lines = []
    plan = plan_build(folder, run_tests=True, check_gradients="point.json", **SETTINGS)
    built = build_image(plan, on_line=lines.append)
    assert built.was_built
    assert any("test_apply.json: passed" in line for line in lines)
    return built


def inside(engine, image, *command):
    return engine.ask(
        "run", "--rm", "--no-healthcheck", "--entrypoint", command[0], image, *command[1:]
    )


def test_a_numpy_component_answers_from_its_image(square):
    with Component.from_image(square.tags[0], network="host", memory="1g") as component:
        x = np.arange(4.0)
        assert component.version == "1.2.0"
        np.testing.assert_array_equal(component.apply({"x": x})["y"], x**2)
        gradient = component.vector_jacobian_product({"x": x}, ["x"], ["y"], {"y": np.ones(4)})
        np.testing.assert_array_equal(gradient["x"], 2 * x)
        container = component.transport.container
        # Whoever has no token gets nothing but its health.
        with pytest.raises(Exception, match="token"):
            Component.from_url(container.url).apply({"x": x})
        assert "Serving" in container.log()
        with pytest.raises(TransportError):
            component.apply({"x": np.zeros(13)})  # ends its worker, not the container
        np.testing.assert_array_equal(component.apply({"x": x})["y"], x**2)
    assert not container.is_running


def test_a_reference_to_an_image_is_opened_where_it_is_allowed(square):
    reference = {"type": "image", "ref": square.tags[0]}
    adapter = TypeAdapter(ComponentReference)
    with pytest.raises(ValueError, match="allow_references"):
        adapter.validate_python(reference)
    with activate(Run(ComponentConfig(allow_references={"image"}))):
        component = adapter.validate_python(reference)
    try:
        np.testing.assert_array_equal(component.apply({"x": [3.0]})["y"], [9.0])
    finally:
        component.close()


def test_an_unchanged_component_is_not_built_again(square, folders):
    plan = plan_build(folders / "square", run_tests=True, check_gradients="point.json", **SETTINGS)
    again = build_image(plan, tags=[":other"])
    assert not again.was_built
    assert again.tags == (square.tags[0], "square:other")
    assert again.labels == square.labels


def test_what_an_image_says_of_itself(engine, square):
    labels = square.labels
    assert labels["chainrule.component"] == "square"
    assert labels["org.opencontainers.image.version"] == "1.2.0"
    assert len(labels["chainrule.schema-hash"]) == 64
    assert square.tags[0] == f"square:{labels['chainrule.context-hash']}"
    facts = engine.inspect("image", square.tags[0])
    assert facts["Config"]["User"] == "10001:10001"
    assert facts["Healthcheck"]["Test"][0] == "CMD"
    assert not any("CERT" in entry for entry in facts["Config"]["Env"])
    bill = json.loads(inside(engine, square.tags[0], "cat", labels["chainrule.sbom"]))
    assert bill["bomFormat"] == "CycloneDX"
    purls = {part["purl"].split("@")[0] for part in bill["components"]}
    assert {"pkg:pypi/numpy", "pkg:pypi/chainrule", "pkg:deb/debian/python3-minimal"} <= purls
    listing = inside(
        engine, square.tags[0], "find", "/component", "/opt/venv/bin", "-maxdepth", "2"
    )
    assert "component.cpython" in listing
    assert ".env" not in listing
    assert "/opt/uv" not in inside(engine, square.tags[0], "ls", "-d", "/opt", "/opt/venv")


def test_an_owner_that_is_killed_takes_its_container_along(engine, square):
    code = (
        "import os, signal; from chainrule.client import Component; "
        f"c = Component.from_image({square.tags[0]!r}, network='host'); "
        "print(c.transport.container.name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    name = done.stdout.strip()
    deadline = time.monotonic() + 60
    while engine.succeeds("container", "inspect", name):
        assert time.monotonic() < deadline, "the container is still there"
        time.sleep(0.2)


def test_the_command_line_runs_lists_and_stops(square, tmp_path):
    def chainrule(*arguments):
        command = [sys.executable, "-m", "chainrule", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    image = square.tags[0]
    once = chainrule("run", image, "apply", '{"inputs": {"x": [3]}}')
    assert json.loads(once.stdout)["y"]["data"]["buffer"] == [9.0], once.stderr
    assert chainrule("run", image, "apply", '{"inputs": {"x": "a"}}').returncode == 2
    started = json.loads(chainrule("run", image, "--network", "host", "--json").stdout)
    name = started["container"]
    with Component.from_url(started["url"], token=started["token"]) as component:
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
    with Component.from_image(image, reuse=True) as component:
        assert component.transport.container.name == name
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
    listed = json.loads(chainrule("ps", "--json").stdout)
    assert [(row["container"], row["state"]) for row in listed] == [(name, "running")]
    assert "Serving at" in chainrule("logs", name).stdout
    images = json.loads(chainrule("list", "--json").stdout)
    assert any(image in row["image"] for row in images)
    assert chainrule("stop", name, "no-such-container").returncode == 2
    assert json.loads(chainrule("stop", "--all", "--json").stdout) == {"stopped": [name]}
    assert json.loads(chainrule("ps", "--json").stdout) == []


def test_a_jax_component_answers_from_its_image(engine, folders):
    files = {"component.py": JAX, "requirements.txt": "jax\n"}
    # Its layers are large, and no other test would use them again.
    whole = dataclasses.replace(engine, build_args=(*engine.build_args, "--layers=false"))
    built = build_image(plan_build(write(folders / "wave", files), **SETTINGS), engine=whole)
    with Component.from_image(built.tags[0], network="host") as component:
        x = np.linspace(0, 1, 5, dtype=np.float32)
        found = component.jacobian_vector_product(
            {"x": x}, ["x"], ["result"], {"x": np.ones_like(x)}
        )
        np.testing.assert_allclose(found["result"], np.cos(x), rtol=1e-6)


def test_an_executable_answers_from_its_image(engine, folders):
    files = {"component.yaml": COMMAND, "double": DOUBLE, "factor.txt": "2"}
    built = build_image(plan_build(write(folders / "doubling", files), **SETTINGS))
    assert "doubling:0.3.0" in built.tags
    with Component.from_image(built.tags[0], network="host") as component:
        np.testing.assert_allclose(component.apply({"x": [1.0, 2.0]})["y"], [2.0, 4.0])
        jacobian = component.jacobian({"x": [1.0, 2.0]}, ["x"], ["y"])["y"]["x"]
        np.testing.assert_allclose(jacobian, 2 * np.eye(2), rtol=1e-6)
    assert inside(engine, built.tags[0], "cat", "/opt/made.txt") == "made"
    assert inside(engine, built.tags[0], "printenv", "GREETING") == "cost: $5"


def test_requirements_that_do_not_exist(folders):
    files = {"component.py": SQUARE, "requirements.txt": "chainrule-no-such-package==1\n"}
    with pytest.raises(DefinitionError, match="requirements cannot be installed") as caught:
        build_image(plan_build(write(folders / "bad", files), **SETTINGS))
    assert caught.value.code == "build_failed"
    assert caught.value.details["step"] == "requirements"
    assert "chainrule-no-such-package" in caught.value.message


def test_secrets_and_local_packages_reach_the_installation(folders):
    setup = """
    import os
    raise SystemExit("the secret is " + os.environ.get("BUILD_TOKEN", "absent"))
    """
    files = {
        "component.py": SQUARE,
        "component.yaml": "build: {secrets: [BUILD_TOKEN]}",
        "requirements.txt": "./helper\n",
        "helper/setup.py": setup,
        "token.txt": "open sesame",
    }
    folder = write(folders / "secretive", files)
    plan = plan_build(folder, **SETTINGS)
    with pytest.raises(DefinitionError, match="the secret is open sesame") as caught:
        build_image(plan, secrets=[f"id=BUILD_TOKEN,src={folder / 'token.txt'}"])
    assert caught.value.details["step"] == "requirements"


def test_a_component_that_crashes_at_import(engine, folders):
    folder = write(folders / "crash", {"component.py": "raise ValueError('no licence server')\n"})
    with pytest.raises(DefinitionError, match="no licence server") as caught:
        build_image(plan_build(folder, **SETTINGS))
    assert caught.value.details["step"] == "component"
    # Built without the check, it fails when it is started, and its log says why.
    built = build_image(plan_build(folder, check=False, **SETTINGS))
    with pytest.raises(TransportError, match="no licence server") as caught:
        Component.from_image(built.tags[0], network="host")
    assert caught.value.code == "container_failed"
    assert list_containers(engine) == []


API = SQUARE.replace("chainrule.runtime", "tesseract_core.runtime")


def test_folders_of_tesseract_core_become_images(folders):
    config = "name: old\nversion: 2.0.0\nbuild_config: {}\n"
    folder = write(folders / "old", {"tesseract_api.py": API, "tesseract_config.yaml": config})
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


PEER = f"""\
FROM {container_engine.BASE}
RUN --mount=type=cache,target=/build-cache \\
    export UV_CACHE_DIR=/build-cache/uv PIP_CACHE_DIR=/build-cache/pip \\
    && export SSL_CERT_FILE={BUNDLE} PIP_CERT={BUNDLE} \\
    && python3 -m venv /opt/uv && /opt/uv/bin/pip install --quiet uv \\
    && /opt/uv/bin/uv venv --quiet /python-env \\
    && /opt/uv/bin/uv pip install --quiet --python /python-env/bin/python "tesseract-core[runtime]==1.15.0"
COPY tesseract_api.py /tesseract/tesseract_api.py
ENV TESSERACT_NAME=peer TESSERACT_API_PATH=/tesseract/tesseract_api.py
WORKDIR /tmp
ENTRYPOINT ["/python-env/bin/tesseract-runtime"]
"""


def test_images_of_tesseract_core_run_too(engine, folders):
    recipe = write(folders / "peer", {"Containerfile": PEER, "tesseract_api.py": API})
    engine.ask("build", *engine.build_args, "--tag", "peer:1", str(recipe))
    with Component.from_image("peer:1", network="host") as component:
        np.testing.assert_array_equal(component.apply({"x": [2.0]})["y"], [4.0])
    name, container = tc.serve("peer:1", network="host")
    try:
        assert container.token is None
        tesseract = tc.Tesseract.from_url(container.url)
        found = tesseract.vector_jacobian_product({"x": [2.0]}, ["x"], ["y"], {"y": [1.0]})
        np.testing.assert_array_equal(found["x"], [4.0])
    finally:
        tc.teardown([name])


def test_images_that_are_not_there_or_not_components(engine):
    with pytest.raises(CapabilityError, match="no-such-image") as missing:
        Component.from_image("localhost/no-such-image:1")
    assert missing.value.code == "image_missing"
    with pytest.raises(InputError, match="no component") as other:
        Component.from_image(container_engine.BASE)
    assert other.value.code == "not_a_component_image"
