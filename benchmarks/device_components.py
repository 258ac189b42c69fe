"""Claim: a component on a GPU is handed device memory inside compiled programs of JAX on the same GPU.

Not part of `make bench`, which runs on a CPU: `python -m benchmarks.device_components` on a machine with a
GPU, or `python -m benchmarks.device_components served peer` for some parts (`inside`, `stages`, `host`,
`served`, `peer`). `y = sin(2x) + 1` in float32; microseconds per call, the median of turns that contestants
take. "torch" is the floor: the same function without JAX, and "by hand" the same by JAX's `buffer_callback`,
without schema, copies of operands or derivatives. Calls inside of a process are twenty in flight, calls of
other processes one after the other. The peer takes its turns beside ours where its packages are installed;
otherwise its figures are those that were measured on an H200 before, and say so.
"""

from __future__ import annotations

import contextlib
import cProfile
import ctypes
import importlib.util
import io
import os
import pstats
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils.dlpack

import chainrule
from benchmarks._harness import interleaved
from chainrule.client import Component
from chainrule.runtime import Array, Differentiable, Float32

try:
    import cupy
except ModuleNotFoundError:
    cupy = None  # type: ignore[assignment]
try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    buffer_callback = None  # type: ignore[assignment]

_HERE = Path(__file__).parent
_SIZES = (1, 10**4, 10**6, 10**8)
_IN_FLIGHT = 20
_BARS = {1: 160, 10**4: 170, 10**6: 170, 10**8: 750}
_SERVED_BARS = {10**4: 600, 10**8: 2000}
# Forward and value_and_grad, measured on an H200 with tesseract-core 1.15.0 and tesseract-jax 0.5.1.
_PEER = {1: (981, 1780), 10**4: (908, 1859), 10**6: (2923, 11706), 10**8: (583708, 1529047)}
_PEER_SERVED = {
    1: (3679, 7814), 10**4: (3728, 7548), 10**6: (3886, 7513), 10**8: (8098, 19979),
}  # fmt: skip

Vector = Differentiable[Array[("n",), Float32]]
_author_s = 0.0


@chainrule.component(framework="torch", device="cuda")
def in_torch(x: Vector) -> Vector:
    """The sine by torch."""
    return torch.sin(2 * x) + 1


@chainrule.component(framework="torch", device="cuda", keeps_inputs=False)
def in_torch_without_copies(x: Vector) -> Vector:
    """The sine by torch, which neither keeps nor overwrites its input."""
    return torch.sin(2 * x) + 1


@chainrule.component(framework="torch", device="cuda")
def timed(x: Vector) -> Vector:
    """The sine by torch, which says how long it has taken to start."""
    global _author_s
    start = time.perf_counter()
    y = torch.sin(2 * x) + 1
    _author_s += time.perf_counter() - start
    return y


@chainrule.component
def on_host(x: Array[("n",), Float32]) -> Array[("n",), Float32]:
    """The sine by NumPy."""
    return np.sin(2 * x) + 1


def _in_cupy() -> Any:
    def sine(x: Array[("n",), Float32]) -> Array[("n",), Float32]:
        """The sine by CuPy."""
        return cupy.sin(2 * x) + 1

    # The annotations are those of this module; those of a nested function are text.
    sine.__annotations__ = dict.fromkeys(("x", "return"), Array[("n",), Float32])
    return chainrule.component(framework="cupy")(sine)


def _applied(component: Any) -> Callable[[Any], Any]:
    return lambda x: chainrule.apply_component(component, {"x": x})["result"]


def _on_callback(x: Any) -> Any:
    return jax.pure_callback(lambda x: np.sin(2 * x) + 1, x, x)


def _by_hand(x: Any) -> Any:
    """What users write without us: the floor inside of a program."""

    def callback(context: Any, out: Any, operand: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(context.stream)):
            given = torch.utils.dlpack.from_dlpack(operand.__dlpack__())
            result = torch.utils.dlpack.from_dlpack(out.__dlpack__())
            torch.sin(2 * given, out=result).add_(1)

    return buffer_callback(callback, x)(x)


def _plain(x: Any) -> Any:
    return jnp.sin(2 * x) + 1


def _in_flight(
    function: Callable[[Any], Any], x: Any, count: int = _IN_FLIGHT
) -> Callable[[], None]:
    compiled = jax.jit(function)

    def call() -> None:
        for _ in range(count):
            y = compiled(x)
        jax.block_until_ready(y)

    return call


def _gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        value, slope = jax.value_and_grad(lambda x: function(x).sum())(x)
        return slope + value * 0

    return step


def _torch_alone(x: Any) -> Callable[[], None]:
    given = torch.utils.dlpack.from_dlpack(x)

    def call() -> None:
        for _ in range(_IN_FLIGHT):
            torch.sin(2 * given) + 1
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return call


def _points(size: int) -> Any:
    return jnp.linspace(0, 3, size, dtype=jnp.float32)


def _check(function: Callable[[Any], Any]) -> None:
    x = _points(1000)
    np.testing.assert_allclose(np.asarray(jax.jit(function)(x)), _plain(x), atol=1e-5)
    slope = jax.jit(jax.grad(lambda x: function(x).sum()))(x)
    np.testing.assert_allclose(np.asarray(slope), 2 * jnp.cos(2 * x), atol=1e-4)


def _microseconds(
    calls: dict[str, Callable[[], None]], counts: int | dict[str, int], rounds: int
) -> dict[str, float]:
    seconds = interleaved(calls, rounds=rounds, min_round_s=0.0)
    each = counts if isinstance(counts, dict) else dict.fromkeys(calls, counts)
    return {name: taken / each[name] * 1e6 for name, taken in seconds.items()}


def _show(size: int, us: dict[str, float], note: str = "") -> None:
    shown = "  ".join(f"{name} {taken:.0f}" for name, taken in us.items())
    print(f"{size:>10}  {shown}  {note}", flush=True)


def inside() -> None:
    """Components in the process of the program."""
    print("# in one process, twenty calls in flight")
    _check(_applied(in_torch))
    for size in _SIZES:
        x = _points(size)
        calls = {
            "plain": _in_flight(_plain, x),
            "torch": _torch_alone(x),
            "ours": _in_flight(_applied(in_torch), x),
            "keeps_inputs=False": _in_flight(_applied(in_torch_without_copies), x),
            "plain_grad": _in_flight(_gradient(_plain), x),
            "grad": _in_flight(_gradient(_applied(in_torch)), x),
            "grad_keeps_inputs=False": _in_flight(_gradient(_applied(in_torch_without_copies)), x),
        }
        if buffer_callback is not None and torch.cuda.is_available():
            calls["by_hand"] = _in_flight(_by_hand, x)
        if cupy is not None:
            calls["cupy"] = _in_flight(_applied(_in_cupy()), x)
        us = _microseconds(calls, _IN_FLIGHT, 9 if size > 10**7 else 15)
        factor, (peer, peer_grad) = us["grad"] / us["ours"], _PEER[size]
        goals = f"goals: ours ≤ {_BARS[size]}, grad {factor:.2f} × ours ≤ 2.5"
        _show(size, us, f"{goals}; peer before: {peer}, {peer_grad}")


def stages() -> None:
    """Where the time of one call goes, by the clock, on the thread of XLA."""
    from chainrule.bridge import _host

    print("# parts of one call, one at a time, microseconds")
    component = timed
    library = _host.device_library_of(_host_target(component))
    if library is None:
        print("no GPU")
        return
    spent: Counter[str] = Counter()

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    with contextlib.ExitStack() as stack:
        for owner, name in (
            (_host.HostCall, "run_on_device"),
            (_host, "fill"),
            (library, "view_buffer"),
            (library, "let_default_stream_wait"),
            (library, "wait_for_default_stream"),
        ):
            before = getattr(owner, name)
            stack.callback(setattr, owner, name, before)
            setattr(owner, name, watched(name, before))
        for size in _SIZES:
            _stages_of(size, component, spent)
    _profile(_host.HostCall)
    _without(library, _host.HostCall)


def _without(library: Any, host_call: Any) -> None:
    """What two things cost, on the processor and on the GPU together.

    "no events": the default stream is not ordered. "kept state": a thread of XLA keeps the state that Python
    makes for it at every call, and drops after it.
    """
    print("# in flight, as it is, without events, with the state of Python kept by thread")
    names = ("let_default_stream_wait", "wait_for_default_stream")
    before, kept = host_call.run_on_device, threading.local()

    def keeping(*arguments: Any) -> Any:
        if not hasattr(kept, "is_kept"):
            kept.is_kept = True
            ctypes.pythonapi.PyGILState_Ensure()
        return before(*arguments)

    for kind in (
        "as it is",
        "no events",
        "kept state",
    ):  # the state is kept for good: it comes last
        for name in names if kind == "no events" else ():
            setattr(library, name, lambda: None)
        if kind == "kept state":
            host_call.run_on_device = keeping
        for size in _SIZES:
            calls = {
                "forward": _in_flight(_applied(in_torch), _points(size)),
                "gradient": _in_flight(_gradient(_applied(in_torch)), _points(size)),
            }
            us = _microseconds(calls, _IN_FLIGHT, 9)
            _show(size, {f"{kind}: {name}": taken for name, taken in us.items()})
        for name in names if kind == "no events" else ():
            delattr(library, name)
    host_call.run_on_device = before


def _profile(host_call: Any) -> None:
    """The functions in which the thread of XLA spends its time; a profile makes all of them slower."""
    before, profile = host_call.run_on_device, cProfile.Profile()

    def run_on_device(*arguments: Any) -> Any:
        profile.enable()
        try:
            return before(*arguments)
        finally:
            profile.disable()

    for kind, function in (("forward", _applied(timed)), ("gradient", _gradient(_applied(timed)))):
        call = _in_flight(function, _points(10**4), 200)
        call()
        profile.clear()
        host_call.run_on_device = run_on_device
        try:
            call()
        finally:
            host_call.run_on_device = before
        print(f"# profile of 200 calls, {kind}, n = 10⁴")
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(16)
        print("\n".join(line for line in text.getvalue().splitlines()[4:] if line.strip()))


def _host_target(component: Any) -> Any:
    from chainrule.bridge._component_target import as_target

    return as_target(component)


def _stages_of(size: int, component: Any, spent: Counter[str]) -> None:
    global _author_s
    x = _points(size)
    for kind, function in (
        ("forward", _applied(component)), ("gradient", _gradient(_applied(component))),
    ):  # fmt: skip
        compiled = jax.jit(function)
        for _ in range(5):
            jax.block_until_ready(compiled(x))
        spent.clear()
        _author_s, count, start = 0.0, 50, time.perf_counter()
        for _ in range(count):
            jax.block_until_ready(compiled(x))
        whole = time.perf_counter() - start
        us = {name: taken / count * 1e6 for name, taken in sorted(spent.items())}
        us["author"] = _author_s / count * 1e6
        _show(size, {f"{kind}: whole": whole / count * 1e6, **us})


def host() -> None:
    """A NumPy component in a program on a GPU."""
    print("# a NumPy component, and jax.pure_callback")
    for size in (1, 10**6):
        x = _points(size)
        calls = {
            "ours": _in_flight(_applied(on_host), x, 4),
            "callback": _in_flight(_on_callback, x, 4),
        }
        us = _microseconds(calls, 4, 9)
        _show(size, us, f"ratio {us['ours'] / us['callback']:.2f} (≤ 0.7 at 10⁶)")


def served() -> None:
    """Components in other processes of this host."""
    print("# in other processes, one call at a time")
    with _serving() as url, contextlib.ExitStack() as stack:
        ways = {
            "served": stack.enter_context(contextlib.closing(Component.from_url(url))),
            "process": stack.enter_context(
                contextlib.closing(Component.from_source(_HERE / "device_sine.py"))
            ),
        }
        for way in ways.values():
            _check(_applied(way))
        for size in _SIZES:
            x = _points(size)
            calls = {}
            for name, way in ways.items():
                calls[name] = _in_flight(_applied(way), x, 1)
                calls[f"{name}_grad"] = _in_flight(_gradient(_applied(way)), x, 1)
            us = _microseconds(calls, 1, 40 if size < 10**7 else 15)
            bar = _SERVED_BARS.get(size)
            goal = f"goal: served ≤ {bar}; " if bar else ""
            _show(size, us, f"{goal}peer before: {_PEER_SERVED[size]}")


def peer() -> None:
    """The peer, in its own process and in this one."""
    if importlib.util.find_spec("tesseract_jax") is None:
        print("# the peer is not installed: its figures are those that were measured before")
        return
    from tesseract_core import Tesseract
    from tesseract_jax import apply_tesseract

    print("# the peer, one call at a time (served: gpu_transport=cuda_ipc)")
    source = _HERE / "device_sine_peer" / "tesseract_api.py"
    # The peer leaves a folder per call.
    with tempfile.TemporaryDirectory() as folder, _serving_peer(source, folder) as url:
        ways = {"peer_served": Tesseract.from_url(url)}
        with contextlib.suppress(Exception):  # it needs more of its own packages in this process
            ways["peer_inside"] = Tesseract.from_tesseract_api(source, output_path=folder)
        for size in _SIZES:
            x = _points(size)
            calls = {}
            for name, way in ways.items():

                def apply(x: Any, way: Any = way) -> Any:
                    return apply_tesseract(way, {"x": x})["result"]

                calls[name] = _in_flight(apply, x, 1)
                calls[f"{name}_grad"] = _in_flight(_gradient(apply), x, 1)
            _show(size, _microseconds(calls, 1, 15 if size < 10**7 else 3))


@contextlib.contextmanager
def _serving() -> Iterator[str]:
    program = (
        "import sys; from chainrule.serve import serve; "
        "serve(sys.argv[1], port=0, on_ready=lambda url: print(url, flush=True))"
    )
    command = [sys.executable, "-c", program, str(_HERE / "device_sine.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def _serving_peer(source: Path, folder: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    variables = {
        **os.environ,
        "TESSERACT_API_PATH": str(source),
        "TESSERACT_NAME": "peer",
        "TESSERACT_GPU_TRANSPORT": "cuda_ipc",
        "TESSERACT_OUTPUT_PATH": folder,
    }
    program = "from tesseract_core.runtime.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", str(port)]
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=60).close()
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


_PARTS = {each.__name__: each for each in (inside, stages, host, served, peer)}


def main(names: list[str]) -> None:
    """Print the parts that are named, or all."""
    start = time.perf_counter()
    found = "none" if cupy is None else cupy.__version__
    print(
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, torch {torch.__version__}, CuPy {found}; "
        "microseconds per call"
    )
    for name in names or _PARTS:
        _PARTS[name]()
        print(f"# {time.perf_counter() - start:.0f} s so far", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
