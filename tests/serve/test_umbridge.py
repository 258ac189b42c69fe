"""UM-Bridge both ways, against the real package: its client calls our server, our client its server."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from chainrule import Component, ComponentError, InputError, apply_component
from chainrule.errors import CapabilityError, TransportError

um = pytest.importorskip("umbridge")
requests = pytest.importorskip("requests")
CONFIG = {"shapes": {"x": [3]}}
X = [[1.0, 2.0, 3.0], [2.0], [3.0, 4.0]]


@pytest.fixture(scope="module")
def served(start_server):
    here = os.path.dirname(__file__)
    return start_server(
        components=[
            os.path.join(here, "umbridge_component.py"),
            os.path.join(here, "finite_component.py"),
        ],
        umbridge=True,
        workers=1,
        port=0,
    )


@pytest.fixture(scope="module")
def url(served):
    return served.url


@pytest.fixture(scope="module")
def model(url):
    return um.HTTPModel(url, "umbridge_component")


def post(url, route, content):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    request = urllib.request.Request(f"{url}/{route}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_bodies_are_bounded_by_what_they_take_parsed(start_server):
    here = os.path.dirname(__file__)
    served = start_server(
        components=os.path.join(here, "umbridge_component.py"),
        umbridge=True,
        workers=0,
        config={"limits": {"max_parsed_bytes": 10_000}},
    )
    body = b'{"name": "umbridge_component", "input": [[' + b"1," * 1000 + b"1]]}"
    status, answer = post(served.url, "Evaluate", body)
    assert status == 413
    assert "--max-parsed-bytes" in answer["error"]["message"]
    served.stop()


def test_what_a_component_does_not_have(start_server, tmp_path):
    source = tmp_path / "plain.py"
    source.write_text(
        textwrap.dedent("""
        from chainrule.runtime import Array, Differentiable, Float64, component

        @component
        def plain(x: Differentiable[Array[(2,), Float64]]) -> Differentiable[Float64]:
            return x.sum()
        """)
    )
    served = start_server(components=str(source), umbridge=True, workers=0)
    model = um.HTTPModel(served.url, "plain")
    assert model([[1.0, 2.0]]) == [[3.0]]
    assert not model.supports_gradient()
    whole = {
        "name": "plain",
        "input": [[1.0, 2.0]],
        "outWrt": 0,
        "inWrt": 0,
        "inWrt1": 0,
        "inWrt2": 0,
    }
    whole |= {"sens": [1.0], "vec": [1.0, 1.0]}
    for route in ("Gradient", "ApplyJacobian", "ApplyHessian"):
        status, answer = post(served.url, route, whole)
        assert (status, answer["error"]["type"]) == (400, "UnsupportedFeature")
    served.stop()


def test_complex_numbers_are_refused_by_name(start_server, tmp_path):
    source = tmp_path / "waves.py"
    source.write_text(
        textwrap.dedent("""
        from chainrule.runtime import Array, Complex128, Differentiable, Float64, component

        @component
        def waves(x: Differentiable[Array[(2,), Float64]]) -> Differentiable[Array[(2,), Complex128]]:
            return x * (1 + 2j)
        """)
    )
    served = start_server(components=str(source), umbridge=True, workers=0)
    for route in ("OutputSizes", "Evaluate"):
        status, answer = post(served.url, route, {"name": "waves", "input": [[1.0, 2.0]]})
        assert (status, answer["error"]["type"]) == (400, "InvalidInput")
        assert "result is complex128, and UM-Bridge" in answer["error"]["message"]
    served.stop()


def test_an_output_of_another_size_than_announced_is_refused(start_server, tmp_path):
    source = tmp_path / "roots.py"
    source.write_text(
        textwrap.dedent("""
        import numpy as np

        from chainrule.runtime import Array, Differentiable, Float64, component

        @component
        def positive(x: Differentiable[Array[(3,), Float64]]) -> Differentiable[Array[("k",), Float64]]:
            return x[x > 0]
        """)
    )
    served = start_server(components=str(source), umbridge=True, workers=0)
    model = um.HTTPModel(served.url, "positive")
    assert model.get_output_sizes() == [3]  # at ones, which the sizes are told for
    assert model([[1.0, 2.0, 3.0]]) == [[1.0, 2.0, 3.0]]
    for x in ([1.0, -1.0, -1.0], [1.0, 2.0, -1.0]):
        answer = {"name": "positive", "input": [x]}
        status, answer = post(served.url, "Evaluate", answer)
        assert (status, answer["error"]["type"]) == (500, "InvalidOutput")
        assert "result" in answer["error"]["message"]
    served.stop()


WINGS = """
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

class Wing(BaseModel):
    chord: Differentiable[Array[("n",), Float64]]

class InputSchema(BaseModel):
    wings: list[Wing]

class OutputSchema(BaseModel):
    lift: Differentiable[Array[("n",), Float64]]

def apply(inputs):
    assert inputs.wings[0].chord.any(), "sizes are told without computing"
    return {"lift": sum(wing.chord**2 for wing in inputs.wings)}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    chords = {f"wings.[{k}].chord": wing.chord for k, wing in enumerate(inputs.wings)}
    return {path: 2 * chords[path] * cotangent_vector["lift"] for path in vjp_inputs}
"""


def test_a_size_that_is_named_inside_a_list_is_known(start_server, tmp_path):
    source = tmp_path / "wings.py"
    source.write_text(WINGS)
    served = start_server(components=str(source), umbridge=True)
    model = um.HTTPModel(served.url, "wings")
    config = {"inputs": {"wings": [{"chord": [0, 0, 0]}, {"chord": [0, 0, 0]}]}}
    assert model.get_input_sizes(config) == [3, 3]
    assert model.get_output_sizes(config) == [3]
    x = [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]]
    assert model(x, config) == [[2.0, 5.0, 10.0]]
    assert model.gradient(0, 0, x, [1.0, 1.0, 1.0], config) == [2.0, 4.0, 6.0]
    shapes = {"inputs": {"wings": [{"chord": {"shape": [5], "dtype": "float64"}}]}}
    expected = {"lift": {"shape": [5], "dtype": "float64"}}
    assert post(served.url, "abstract_eval", shapes) == (200, expected)
    command = [sys.executable, "-m", "chainrule", "call", "abstract-eval"]
    for where in (source, served.url):
        asked = subprocess.run(
            [*command, where, json.dumps(shapes)], capture_output=True, check=True
        )
        assert json.loads(asked.stdout) == expected
    remote = Component.from_url(served.url)
    with jax.enable_x64(True):
        slope = jax.jit(
            jax.grad(lambda a: apply_component(remote, {"wings": [{"chord": a}]})["lift"].sum())
        )(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(slope, [2.0, 4.0])


def test_an_optional_input_is_a_vector_unless_the_config_leaves_it_out(start_server, tmp_path):
    source = tmp_path / "shifted.py"
    source.write_text(
        textwrap.dedent("""
        from chainrule.runtime import Differentiable, Float64, component

        @component
        def shifted(
            x: Differentiable[Float64], shift: Differentiable[Float64] | None = None
        ) -> Differentiable[Float64]:
            return x if shift is None else x + shift
        """)
    )
    served = start_server(components=str(source), umbridge=True, workers=0)
    model = um.HTTPModel(served.url, "shifted")
    assert model.get_input_sizes() == [1, 1]
    assert model([[1.0], [2.0]]) == [[3.0]]
    without = {"inputs": {"shift": None}}
    assert model.get_input_sizes(without) == [1]
    assert model([[1.0]], without) == [[1.0]]
    required = {"name": "shifted", "input": [], "config": {"inputs": {"x": None}}}
    status, answer = post(served.url, "Evaluate", required)
    assert (status, answer["error"]["type"]) == (400, "InvalidInput")
    assert "'x'" in answer["error"]["message"]
    served.stop()


def test_models_sizes_and_values(url, model):
    names = um.supported_models(url)
    assert names[:2] == ["umbridge_component", "umbridge_component-flat"]
    assert len(names) == 4  # the second component by its name
    assert model.get_input_sizes(CONFIG) == [3, 1, 2]
    assert model.get_output_sizes(CONFIG) == [3, 1]
    assert model(X, CONFIG) == [[2.0, 8.0, 18.0], [50.0]]
    assert model.get_input_sizes({"inputs": {"x": [0.0, 0.0]}}) == [2, 1, 2]
    assert model.get_output_sizes({"inputs": {"x": [0.0, 0.0]}}) == [2, 1]
    assert model(X, {**CONFIG, "inputs": {"mode": "cube"}})[0] == [2.0, 16.0, 54.0]
    assert (model.supports_gradient(), model.supports_apply_hessian()) == (True, True)


def test_derivatives_block_by_block(model):
    assert model.gradient(0, 0, X, [1.0, 1.0, 1.0], CONFIG) == [4.0, 8.0, 12.0]
    assert model.gradient(0, 1, X, [1.0, 0.0, 1.0], CONFIG) == [10.0]
    assert model.gradient(1, 2, X, [2.0], CONFIG) == [24.0, 32.0]
    assert model.apply_jacobian(0, 0, X, [1.0, 0.0, -1.0], CONFIG) == [4.0, 0.0, -12.0]
    assert model.apply_jacobian(1, 1, X, [1.0], CONFIG) == [25.0]
    assert model.apply_hessian(1, 2, 2, X, [1.0], [1.0, 0.0], CONFIG) == [4.0, 0.0]
    assert model.apply_hessian(1, 1, 2, X, [1.0], [1.0, 1.0], CONFIG) == [14.0]


def test_the_flat_view_has_one_vector_each(url):
    flat = um.HTTPModel(url, "umbridge_component-flat")
    assert (flat.get_input_sizes(CONFIG), flat.get_output_sizes(CONFIG)) == ([6], [4])
    point = [[1.0, 2.0, 3.0, 2.0, 3.0, 4.0]]
    assert flat(point, CONFIG) == [[2.0, 8.0, 18.0, 50.0]]
    assert flat.gradient(0, 0, point, [1.0, 1.0, 1.0, 1.0], CONFIG) == [4, 8, 12, 39, 12, 16]


@pytest.mark.parametrize(
    ("route", "change", "kind", "words"),
    [
        ("Evaluate", {"input": [[1.0], [2.0], [3.0, 4.0]]}, "InvalidInput", "Expected 3 but got 1"),
        ("Evaluate", {"input": [[1.0]]}, "InvalidInput", "a list of 3 vectors; found 1"),
        (
            "Evaluate",
            {"input": [["a", 1, 2], [2.0], [3.0, 4.0]]},
            "InvalidInput",
            "input[0] (x) to be a list of numbers",
        ),
        ("Evaluate", {"input": None}, "InvalidInput", "found none"),
        ("Evaluate", {"name": "nope"}, "ModelNotFound", "there are umbridge_component"),
        ("Gradient", {"sens": None}, "InvalidInput", "sens (y) to be a list of numbers"),
        ("Evaluate", {"config": {}}, "InvalidInput", "The size of 'x' is open"),
        ("Evaluate", {"config": {**CONFIG, "mode": "cube"}}, "InvalidInput", "go below"),
        ("Evaluate", {"config": {"shapes": {"x": [3], "z": [1]}}}, "InvalidInput", "names z"),
        ("Evaluate", {"config": {**CONFIG, "inputs": {"mode": "zz"}}}, "InvalidInput", "mode"),
        *(
            ("Evaluate", {"config": {"shapes": {"x": shape}}}, "InvalidInput", "the shape of 'x'")
            for shape in ([-3], "abc", ["3"], 3, [3.5], [True], {"a": 1}, [1] * 100)
        ),
        ("Evaluate", {"config": {"shapes": 5}}, "InvalidInput", "config.shapes to be an object"),
        ("Evaluate", {"config": {"inputs": [5]}}, "InvalidInput", "config.inputs to be an object"),
        ("Evaluate", {"config": "x"}, "InvalidInput", "config to be an object; found a str"),
        (
            "Evaluate",
            {"config": {**CONFIG, "inputs": {"part": 5}}},
            "InvalidInput",
            "config.inputs.part to be an object; found an int",
        ),
        ("Evaluate", {"config": {**CONFIG, "inputs": {"mode": 2**70}}}, "InvalidInput", "mode"),
        ("Gradient", {"sens": [1.0]}, "InvalidInput", "Expected 3 but got 1"),
        ("Gradient", {"outWrt": 2}, "InvalidInput", "outWrt to be a number from 0 to 1"),
        ("Gradient", {"inWrt": -1}, "InvalidInput", "inWrt"),
        ("ApplyJacobian", {"vec": [1.0]}, "InvalidInput", "Expected 3 but got 1"),
        (
            "ApplyHessian",
            {"inWrt1": 0, "inWrt2": 1, "vec": [1.0, 2.0]},
            "InvalidInput",
            "Expected 1",
        ),
    ],
)
def test_bad_requests_are_named_in_json(url, route, change, kind, words):
    whole = {"name": "umbridge_component", "input": X, "config": CONFIG, "outWrt": 0, "inWrt": 0}
    whole |= {"sens": [1.0, 1.0, 1.0], "vec": [1.0, 1.0, 1.0], **change}
    status, answer = post(url, route, whole)
    assert (status, answer["error"]["type"]) == (400, kind)
    assert words in answer["error"]["message"]


@pytest.mark.parametrize("shape", [[2**40], [2**62], [2**70], [0, 2**62], [2**20, 2**20]])
def test_shapes_of_much_memory_are_refused(url, shape):
    content = {"name": "umbridge_component", "config": {"shapes": {"x": shape}}}
    status, answer = post(url, "InputSizes", content)
    assert (status, answer["error"]["type"]) == (413, "InvalidInput")


def test_shapes_take_no_memory(url, served):
    server = psutil.Process(served.process.pid)
    before = server.memory_info().rss
    for number in range(8):
        content = {"name": "umbridge_component", "config": {"shapes": {"x": [10**7 + number]}}}
        assert post(url, "InputSizes", content)[1]["inputSizes"][0] == 10**7 + number
    assert server.memory_info().rss - before < 80e6  # one of these arrays


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a" * 100_000},
        {"name": ["a"] * 10_000},
        {"config": {f"{k:01000d}": 1 for k in range(1000)}},
        {"config": {"shapes": {"x": [3], **{f"{k:01000d}": [1] for k in range(1000)}}}},
        {"config": {**CONFIG, "inputs": {f"{k:01000d}": 1 for k in range(1000)}}},
        {"inWrt": "a" * 100_000},
    ],
)
def test_messages_do_not_echo_the_request(url, change):
    whole = {"name": "umbridge_component", "input": X, "config": CONFIG, "outWrt": 0, "inWrt": 0}
    status, answer = post(url, "Gradient", {**whole, "sens": [1.0, 1.0, 1.0], **change})
    assert status == 400
    assert len(answer["error"]["message"]) <= 2000


def test_a_caller_that_leaves_frees_the_worker(served, url, model, wait_until):
    hanging = {"name": "umbridge_component", "input": X, "config": {**CONFIG}}
    hanging["config"]["inputs"] = {"mode": "hang"}
    with contextlib.closing(served.connect()) as connection:
        connection.request("POST", "/Evaluate", json.dumps(hanging))
        wait_until(lambda: served.is_running)
    assert model(X, CONFIG)[1] == [50.0]


def test_long_vectors(url):
    """Longer than what is converted and written in one step."""
    x = (np.arange(100_000) % 7 - 2.5).tolist()
    config = {"shapes": {"x": [len(x)]}}
    content = {"name": "umbridge_component", "input": [x, [2.0], [3.0, 4.0]], "config": config}
    status, answer = post(url, "Evaluate", content)
    assert status == 200
    np.testing.assert_array_equal(answer["output"][0], 2 * np.square(x))
    content["input"][0][70_000] = "1"
    assert post(url, "Evaluate", content)[1]["error"]["type"] == "InvalidInput"


def test_faults_are_json_and_the_server_goes_on(url, model, monkeypatch):
    failing = {
        "name": "umbridge_component",
        "input": X,
        "config": {**CONFIG, "inputs": {"mode": "fail"}},
    }
    status, answer = post(url, "Evaluate", failing)
    assert status == 500
    assert "no convergence" in answer["error"]["message"]
    for body in (b"not json", b"", b"[]", b"\xff"):
        status, answer = post(url, "Evaluate", body)
        assert (status, answer["error"]["type"]) == (400, "InvalidInput")
    with pytest.raises(Exception, match="no convergence"):
        model(X, failing["config"])
    # As the client reads it with the standard library; `requests` prefers simplejson, which refuses NaN.
    monkeypatch.setattr(requests.models, "complexjson", json)
    values = model(X, {**CONFIG, "inputs": {"mode": "nan"}})
    assert np.isnan(values[0]).all()
    assert model(X, CONFIG)[1] == [50.0]


def test_our_client_and_our_server(url):
    found = Component.from_umbridge(url, "umbridge_component", config=CONFIG)
    assert list(found.differentiable_inputs) == ["x", "part_mass", "part_length"]
    inputs = {"x": np.array(X[0]), "part_mass": np.array(X[1]), "part_length": np.array(X[2])}
    assert found.apply(inputs)["energy"].tolist() == [50.0]
    cotangents = {"y": np.ones(3), "energy": [1.0]}
    product = found.vector_jacobian_product(inputs, ["x"], ["y", "energy"], cotangents)
    assert product["x"].tolist() == [4.0, 8.0, 12.0]


STRANGER = """
import functools, sys, time, umbridge

class Square(umbridge.Model):
    def __init__(self): super().__init__("square")
    def get_input_sizes(self, config): return [config.get("n", 2), 1]
    def get_output_sizes(self, config): return [config.get("n", 2)]
    def __call__(self, p, config):
        if config.get("mode") == "fail": raise ArithmeticError("no convergence")
        if config.get("mode") == "nan": return [[float("nan"), -float("inf")]]
        if config.get("mode") == "slow": time.sleep(2)
        return [[p[1][0] * x**2 for x in p[0]]]
    def supports_evaluate(self): return True
    def gradient(self, o, i, p, sens, config):
        if i == 0: return [2 * p[1][0] * x * s for x, s in zip(p[0], sens)]
        return [sum(x**2 * s for x, s in zip(p[0], sens))]
    def supports_gradient(self): return True
    def apply_jacobian(self, o, i, p, v, config):
        if i == 0: return [2 * p[1][0] * x * d for x, d in zip(p[0], v)]
        return [x**2 * v[0] for x in p[0]]
    def supports_apply_jacobian(self): return True

class Plain(umbridge.Model):
    def __init__(self): super().__init__("plain")
    def get_input_sizes(self, config): return [1]
    def get_output_sizes(self, config): return [1]
    def __call__(self, p, config): return [[p[0][0] + 1]]
    def supports_evaluate(self): return True

umbridge.um.web.run_app = functools.partial(umbridge.um.web.run_app, host="127.0.0.1", print=None)
umbridge.serve_models([Square(), Plain()], int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """The package's own server; ended by its process id."""
    import socket
    import time

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    file = tmp_path_factory.mktemp("stranger") / "server.py"
    file.write_text(textwrap.dedent(STRANGER))
    process = subprocess.Popen([sys.executable, str(file), str(port)], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/Info")
                break
            except OSError:
                time.sleep(0.1)
        yield url, process
    finally:
        process.kill()
        process.wait()


def test_a_strangers_model_under_jit_and_grad(stranger):
    square = Component.from_umbridge(stranger[0], "square")
    assert square.capabilities["vector_jacobian_product"].status == "native"
    assert square.capabilities["hessian_vector_product"].status == "absent"

    def loss(x, c):
        return jnp.sum(apply_component(square, {"input_0": x, "input_1": c})["output_0"] ** 2)

    def closed(x, c):
        return jnp.sum((c * x**2) ** 2)

    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(True):
        point = jnp.array([1.0, 2.0]), jnp.array([3.0])
        found = jax.jit(jax.value_and_grad(loss, (0, 1)))(*point)
        expected = jax.value_and_grad(closed, (0, 1))(*point)
        jax.tree.map(np.testing.assert_allclose, found, expected)
        pushed = jax.jvp(loss, point, point)[1]
        np.testing.assert_allclose(pushed, jax.jvp(closed, point, point)[1])


def test_a_strangers_faults(stranger):
    url, _ = stranger
    square = Component.from_umbridge(url, "square")
    inputs = {"input_0": [1.0, 2.0], "input_1": [1.0]}
    nan = square.apply({**inputs, "config": {"mode": "nan"}})["output_0"]
    assert np.isnan(nan[0])
    assert nan[1] == -np.inf
    with pytest.raises(ComponentError, match="500"):
        square.apply({**inputs, "config": {"mode": "fail"}})
    assert square.apply(inputs)["output_0"].tolist() == [1.0, 4.0]
    three = Component.from_umbridge(url, "square", config={"n": 3})
    assert three.apply({"input_0": [1.0, 2.0, 3.0], "input_1": [1.0]})["output_0"].shape == (3,)
    with pytest.raises(InputError, match=r"f64\[2\]"):
        square.apply({"input_0": [1.0, 2.0, 3.0], "input_1": [1.0]})
    with pytest.raises(TransportError) as caught:
        Component.from_umbridge(url, "square", timeout=0.5).apply(
            {**inputs, "config": {"mode": "slow"}}
        )
    assert caught.value.code == "timeout"


def test_differences_of_a_model_that_has_values_only(stranger):
    plain = Component.from_umbridge(stranger[0], "plain", derivatives="finite")
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(True):
        slope = jax.grad(lambda x: apply_component(plain, {"input_0": x})["output_0"].sum() ** 2)
        np.testing.assert_allclose(slope(jnp.array([1.5])), [5.0], rtol=1e-6)  # (x + 1)²
    found = plain.jacobian({"input_0": [1.5]}, ["input_0"], ["output_0"])
    np.testing.assert_allclose(found["output_0"]["input_0"], [[1.0]], rtol=1e-6)


def test_what_a_stranger_does_not_have(stranger, url):
    plain = Component.from_umbridge(stranger[0], "plain")
    assert plain.apply({"input_0": [1.0]})["output_0"].tolist() == [2.0]
    assert plain.capabilities["vector_jacobian_product"].status == "absent"
    with pytest.raises(CapabilityError, match="vector_jacobian_product"):
        plain.vector_jacobian_product(
            {"input_0": [1.0]}, ["input_0"], ["output_0"], {"output_0": [1.0]}
        )
    with pytest.raises(InputError, match="'server' or 'finite'"):
        Component.from_umbridge(stranger[0], "plain", derivatives="jax")
    with pytest.raises(CapabilityError, match="there are square, plain"):
        Component.from_umbridge(stranger[0])
    with pytest.raises(TransportError) as caught:
        Component.from_umbridge("http://127.0.0.1:1", "square")
    assert caught.value.code == "unreachable"
    with pytest.raises(TransportError, match="UM-Bridge") as caught:
        Component.from_umbridge(f"{url}/c/umbridge_component", "square")
    assert caught.value.code == "not_umbridge"
