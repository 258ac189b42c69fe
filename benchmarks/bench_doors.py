"""What the doors to other tools add to a call, beside the tools' own servers and hand-written wrappers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import http.client
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks._callers import seconds_per_request
from benchmarks._harness import MANY_TURNS, Row, interleaved, show

SIZES = (10, 100_000)
SOURCE = '''
"""y = x², with its Jacobian."""
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64, SparseArray

class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]

def apply(inputs):
    return {"y": inputs.x**2}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * inputs.x * cotangent_vector["y"]}

def jacobian(inputs, jac_inputs, jac_outputs):
    n = inputs.x.size
    rows = np.arange(n)
    return {"y": {"x": SparseArray((n, n), np.stack([rows, rows], 1), 2 * inputs.x)}}
'''


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "square.py"
        source.write_text(SOURCE)
        rows = _optimise()
        if find_spec("umbridge"):
            rows += _umbridge(source)
        if find_spec("openmdao"):
            rows += _openmdao(source)
        if find_spec("casadi"):
            rows += _casadi(source)
        if find_spec("mcp_types"):
            rows += _mcp(source)
        if find_spec("fmpy") and shutil.which("gcc"):
            rows += _fmu(folder)
        if find_spec("onnxruntime") and find_spec("onnx"):
            rows += _onnx(folder)
        return rows


def _umbridge(source: Path) -> list[Row]:
    rows = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(_served(_serve_ours, str(source), 1))
        thread = stack.enter_context(_served(_serve_ours, str(source), 0))
        theirs = stack.enter_context(_served(_serve_theirs))
        empty = stack.enter_context(_served(_serve_constant))
        for n, callers in product((10, 1000, 100_000), (1, 8, 32)):
            rows.append(_rate(ours, theirs, n, callers))
        rows += _small_requests(thread, theirs, empty)
    return [*rows, _callers(source)]


def _rate(ours: str, theirs: str, n: int, callers: int) -> Row:
    """Time per request of the default deployments: one worker process of ours, one thread of the peer."""
    body = {"name": "square", "input": [np.linspace(0, 1, n).tolist()]}
    requests = {
        ours: _http_request({**body, "config": {"shapes": {"x": [n]}}}),
        theirs: _http_request({**body, "config": {"n": n}}),
    }
    found: dict[str, list[float]] = {url: [] for url in requests}
    for _ in range(5):
        for url, request in requests.items():
            found[url].append(seconds_per_request(urlsplit(url).netloc, request, callers))
    return Row(
        f"UM-Bridge Evaluate, n = {n}, callers: {callers}",
        statistics.median(found[ours]),
        statistics.median(found[theirs]),
        "umbridge serve_models (peer)",
        0.5,
        note=f"seconds over requests, both by default; {1 / statistics.median(found[ours]):.0f} requests/s",
    )


def _http_request(content: Any) -> bytes:
    body = json.dumps(content).encode()
    head = f"POST /Evaluate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _small_requests(ours: str, theirs: str, empty: str) -> list[Row]:
    """What of a small request is HTTP, and what its callers see who use the package's own client."""
    import umbridge

    n = min(SIZES)
    content = {"name": "square", "input": [np.linspace(0, 1, n).tolist()]}
    config, their_config = {"shapes": {"x": [n]}}, {"n": n}
    us, peer = (umbridge.HTTPModel(url, "square") for url in (ours, theirs))
    seconds = interleaved(
        {
            "us": _request(ours, {**content, "config": config}),
            "empty": _request(empty, {**content, "config": config}),
            "our model": lambda: us(content["input"], config),
            "their model": lambda: peer(content["input"], their_config),
        },
        rounds=11,
    )
    claim = f"UM-Bridge Evaluate, n = {n}"
    against = "an application on uvicorn that sends a constant"
    note = "the least that a server of this kind takes"
    by_client = "by the package's own client, which makes a connection for each call"
    return [
        Row(claim, seconds["us"], seconds["empty"], against, note=note),
        Row(
            claim, seconds["our model"], seconds["their model"], "umbridge serve_models (peer)",
            note=by_client,
        ),
    ]  # fmt: skip


STEPS = 200
CALLERS = 8
BUSY = """
from chainrule.runtime import Differentiable, Float64, component

@component
def busy(x: Differentiable[Float64]) -> Differentiable[Float64]:
    return x + sum(range(400_000)) % 2
"""


def _callers(source: Path) -> Row:
    """Several callers of a model that computes: processes of ours, threads of the peer."""
    busy = source.with_name("busy.py")
    busy.write_text(BUSY)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(_served(_serve_ours, str(busy), 2))
        theirs = stack.enter_context(_served(_serve_theirs, 2))
        pool = stack.enter_context(ThreadPoolExecutor(CALLERS))
        body = {"name": "busy", "input": [[1.0]]}
        requests = {
            name: [_request(url, body) for _ in range(CALLERS)]
            for name, url in (("us", ours), ("peer", theirs))
        }

        def all_at_once(name: str) -> None:
            list(pool.map(lambda request: request(), requests[name]))

        seconds = interleaved(
            {name: functools.partial(all_at_once, name) for name in requests}, rounds=7
        )
    claim = f"UM-Bridge Evaluate, {CALLERS} callers, a model of some milliseconds"
    note = (
        f"two workers each, processes of ours and threads of the peer; {os.cpu_count()} processors"
    )
    return Row(claim, seconds["us"], seconds["peer"], "umbridge serve_models (peer)", note=note)


def _request(url: str, content: Any) -> Callable[[], None]:
    """A bare request: the package's own client takes a new connection for each, and longer than a server."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    body = json.dumps(content)

    def call() -> None:
        connection.request("POST", "/Evaluate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

    return call


def _serve_ours(port: int, source: str, workers: int = 0) -> None:
    from chainrule.serve import serve

    serve(source, port=port, umbridge=True, workers=workers)


def _serve_constant(port: int) -> None:
    import uvicorn

    content = b'{"output":[[0,1,4,9,16,25,36,49,64,81]]}'
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    uvicorn.run(app, port=port, lifespan="off", log_level="error", access_log=False)


def _serve_theirs(port: int, workers: int = 1) -> None:
    import umbridge

    class Busy(umbridge.Model):
        def __init__(self) -> None:
            super().__init__("busy")

        def get_input_sizes(self, config: Any) -> list[int]:
            return [1]

        get_output_sizes = get_input_sizes

        def __call__(self, parameters: Any, config: Any) -> Any:
            return [[parameters[0][0] + sum(range(400_000)) % 2]]

        def supports_evaluate(self) -> bool:
            return True

    class Square(umbridge.Model):
        def __init__(self) -> None:
            super().__init__("square")

        def get_input_sizes(self, config: Any) -> list[int]:
            return [config["n"]]

        def get_output_sizes(self, config: Any) -> list[int]:
            return [config["n"]]

        def __call__(self, parameters: Any, config: Any) -> Any:
            return [(np.array(parameters[0]) ** 2).tolist()]

        def supports_evaluate(self) -> bool:
            return True

    umbridge.um.web.run_app = functools.partial(
        umbridge.um.web.run_app, host="127.0.0.1", print=None
    )
    umbridge.serve_models([Square(), Busy()], port, workers)


@contextlib.contextmanager
def _served(target: Any, *arguments: Any) -> Iterator[str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=target, args=(port, *arguments))
    process.start()
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/Info").close()
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.join()


def _openmdao(source: Path) -> list[Row]:
    import openmdao.api as om

    import chainrule.openmdao
    from chainrule.runtime import load_component

    square = load_component(source)

    class ByHand(om.ExplicitComponent):
        def initialize(self) -> None:
            self.options.declare("n")

        def setup(self) -> None:
            n = self.options["n"]
            self.add_input("x", np.ones(n))
            self.add_output("y", np.ones(n))
            self.declare_partials("y", "x", rows=np.arange(n), cols=np.arange(n))

        def compute(self, inputs: Any, outputs: Any) -> None:
            outputs["y"] = inputs["x"] ** 2

        def compute_partials(self, inputs: Any, partials: Any) -> None:
            partials["y", "x"] = 2 * inputs["x"]

    class Around(ByHand):
        def compute(self, inputs: Any, outputs: Any) -> None:
            outputs["y"] = square.apply({"x": inputs["x"]})["y"]

    rows = []
    for n in SIZES:
        wrapped = chainrule.openmdao.component(square, {"x": np.ones(n)}, partials="sparse")
        problems = {}
        for name, each in (("us", wrapped), ("bare", ByHand(n=n)), ("around", Around(n=n))):
            problems[name] = om.Problem(reports=False)
            problems[name].model.add_subsystem("c", each, promotes=["*"])
            problems[name].setup()
            problems[name].run_model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seconds = interleaved({name: p.run_model for name, p in problems.items()})
        claim = f"OpenMDAO run_model, n = {n}"
        against = "a hand-written component around the same component"
        rows.append(Row(claim, seconds["us"], seconds["around"], against, 1.2))
        note = "x**2 in NumPy, without validation and copies: what a component costs, not its door"
        against = "a hand-written component, x**2"
        rows.append(Row(claim, seconds["us"], seconds["bare"], against, note=note))
    return rows


def _casadi(source: Path) -> list[Row]:
    import casadi
    import chainrule.casadi
    from chainrule.runtime import load_component

    square = load_component(source)

    class ByHand(casadi.Callback):
        def __init__(self, n: int) -> None:
            casadi.Callback.__init__(self)
            self.column = casadi.Sparsity.dense(n, 1)
            self.construct("by_hand")

        def get_sparsity_in(self, i: int) -> Any:
            return self.column

        def get_sparsity_out(self, i: int) -> Any:
            return self.column

        def eval(self, arguments: Any) -> Any:
            return [casadi.DM(square.apply({"x": arguments[0].full().ravel()})["y"])]

    rows = []
    for n in SIZES:
        x = casadi.DM(np.linspace(0, 1, n))
        f, by_hand = chainrule.casadi.function(square, {"x": np.ones(n)}), ByHand(n)
        seconds = interleaved({"us": lambda f=f, x=x: f(x), "floor": lambda f=by_hand, x=x: f(x)})
        claim = f"a component as a CasADi function, n = {n}"
        rows.append(
            Row(claim, seconds["us"], seconds["floor"], "a hand-written callback around it")
        )
    return rows


MCP_PEER = """
from mcp.server import MCPServer

server = MCPServer("square")

@server.tool()
def square(x: list[float]) -> dict[str, list[float]]:
    return {"y": [each**2 for each in x]}

server.run()
"""


def _mcp(source: Path) -> list[Row]:
    from anyio.from_thread import start_blocking_portal

    from mcp import Client, StdioServerParameters

    peer = source.with_name("mcp_peer.py")
    peer.write_text(MCP_PEER)
    ours = ["-m", "chainrule", "mcp", str(source), "--max-elements", str(2 * max(SIZES))]
    rows = []
    with start_blocking_portal() as portal, contextlib.ExitStack() as stack:

        def caller(arguments: list[str], tool: str) -> Callable[[Any], None]:
            server = StdioServerParameters(
                command=sys.executable, args=arguments, env=dict(os.environ)
            )
            client = stack.enter_context(portal.wrap_async_context_manager(Client(server)))

            def call(x: list[float]) -> None:
                answer = portal.call(client.call_tool, tool, {"x": x})
                assert not answer.is_error, answer.content

            return call

        us, peers = caller(ours, "square_apply"), caller([str(peer)], "square")
        for n in SIZES:
            x = np.linspace(0, 1, n).tolist()
            seconds = interleaved({"us": lambda x=x: us(x), "peer": lambda x=x: peers(x)}, rounds=5)
            claim = f"an MCP tool, n = {n}"
            note = "author code in a process of its own; the client's part is in both"
            rows.append(
                Row(claim, seconds["us"], seconds["peer"], "mcp's own server (peer)", note=note)
            )
    return rows


def _fmu(folder: str) -> list[Row]:
    import fmpy
    from examples.fmu import build_fmu
    from fmpy.simulation import instantiate_fmu

    from chainrule.runtime import from_fmu

    path = build_fmu("drain3", folder)
    description = fmpy.read_model_description(str(path))
    fmu = instantiate_fmu(fmpy.extract(str(path), f"{folder}/fmu"), description, "ModelExchange")
    fmu.enterInitializationMode(startTime=0.0)
    fmu.exitInitializationMode()
    fmu.updateDiscreteStates()
    fmu.enterContinuousTimeMode()
    states = np.array([4.0, 2.0, 1.0])
    x, dx = (ctypes.c_double * 3)(), (ctypes.c_double * 3)()
    x_view = np.ctypeslib.as_array(x)

    def by_hand(states: Any = states) -> Any:
        x_view[:] = states
        fmu.setTime(0.0)
        fmu.setContinuousStates(x, 3)
        fmu.setFloat64([3], [1.0])
        fmu.getContinuousStateDerivatives(dx, 3)
        return np.array(dx), fmu.getFloat64([1, 6], 4)

    step = from_fmu(path, kind="step")
    inputs = {"time": 0.0, "states": {"x": states}, "inputs": {"u": 1.0}}
    point: Any = step.input_schema(**inputs)

    def in_a_loop() -> Any:
        point.time = 0.0
        point.states.x = states
        return step(point)

    seconds = interleaved(
        {"loop": in_a_loop, "call": lambda: step.apply(inputs), "floor": by_hand}, **MANY_TURNS
    )
    against, note = "FMPy's own calls", "a point that was validated once, with new states"
    rows = [Row("FMU step, in a loop", seconds["loop"], seconds["floor"], against, 1.5, note=note)]
    note = "with validation of all inputs and outputs, which FMPy's calls do not have"
    rows.append(Row("FMU step", seconds["call"], seconds["floor"], against, 1.5, note=note))
    rows.append(_fmu_under_jit(step, by_hand, states))
    whole = from_fmu(path, method="rk4", step_size=0.001)
    times = {"times": np.array([0.0, 1.0])}
    seconds = interleaved(
        {
            "us": lambda: whole.apply(times),
            "peer": lambda: fmpy.simulate_fmu(
                f"{folder}/fmu", model_description=description, fmi_type="ModelExchange",
                solver="Euler", step_size=0.00025, stop_time=1.0, output_interval=0.00025,
                validate=False,
            ),
        },
        rounds=5,
    )  # fmt: skip
    claim = "FMU, 4000 evaluations in a simulation"
    rows.append(Row(claim, seconds["us"], seconds["peer"], "FMPy's Euler loop (peer)", 1.5))
    return rows


def _fmu_under_jit(step: Any, by_hand: Callable[[Any], Any], states: Any) -> Row:
    """One evaluation of the equations in an integrator of JAX, of 200 in one compiled loop."""
    import jax
    import jax.numpy as jnp

    from chainrule import apply_component

    with jax.enable_x64(True):
        vector, number = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((3,), ()))

        def on_host(x: Any) -> Any:
            rates, outputs = by_hand(np.asarray(x))
            return rates, np.array(outputs[:3]), np.array(outputs[3])

        def ours(x: Any) -> Any:
            found = apply_component(step, {"time": 0.0, "states": {"x": x}, "inputs": {"u": 1.0}})
            return found["derivatives"]["x"]

        def theirs(x: Any) -> Any:
            return jax.pure_callback(on_host, (vector, vector, number), x)[0]

        def euler(rates: Callable[[Any], Any]) -> Callable[[], Any]:
            compiled = jax.jit(
                lambda x: jax.lax.fori_loop(0, STEPS, lambda _, x: x + 1e-3 * rates(x), x)
            )
            return lambda: compiled(states).block_until_ready()

        seconds = interleaved({"us": euler(ours), "peer": euler(theirs)})
    against = "FMPy's own calls in a jax.pure_callback"
    note = f"each of {STEPS} steps of Euler's method in one compiled program"
    claim = "FMU step, in an integrator of JAX"
    return Row(claim, seconds["us"] / STEPS, seconds["peer"] / STEPS, against, 1.5, note=note)


def _onnx(folder: str) -> list[Row]:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    from chainrule.runtime import from_onnx

    one = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"])],
        "square",
        [one("x", TensorProto.DOUBLE, ["n"])],
        [one("y", TensorProto.DOUBLE, ["n"])],
    )
    path = f"{folder}/square.onnx"
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    session, model = onnxruntime.InferenceSession(path), from_onnx(path)
    rows = []
    for n in SIZES:
        x = np.linspace(0, 1, n)
        seconds = interleaved(
            {
                "us": lambda x=x: model.apply({"x": x}),
                "floor": lambda x=x: session.run(None, {"x": x}),
            }
        )
        claim = f"an ONNX model, n = {n}"
        rows.append(Row(claim, seconds["us"], seconds["floor"], "onnxruntime itself"))
    return rows


def _optimise() -> list[Row]:
    import jax
    import jax.numpy as jnp
    from scipy.optimize import minimize as scipy_minimize

    import chainrule

    def rosenbrock(x: Any) -> Any:
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    start = np.zeros(100)
    ours = chainrule.minimize(lambda p: rosenbrock(p["x"]), {"x": start}, max_evaluations=100_000)
    compiled = jax.jit(jax.value_and_grad(rosenbrock))

    def by_hand(x: Any) -> Any:
        value, gradient = compiled(x)
        return float(value), np.asarray(gradient, float)

    with jax.enable_x64(True):
        seconds = interleaved(
            {
                "us": lambda: chainrule.minimize(lambda p: rosenbrock(p["x"]), {"x": start}),
                "floor": lambda: scipy_minimize(by_hand, start, jac=True, method="L-BFGS-B"),
            },
            rounds=5,
        )
    note = f"{ours.evaluations} evaluations; our time has the compilation in it"
    claim = "minimize, Rosenbrock in 100 variables"
    return [Row(claim, seconds["us"], seconds["floor"], "scipy by hand", note=note)]


if __name__ == "__main__":
    show(run())
