"""Components inside JAX: `apply_component`, plain JAX, `jax.pure_callback` and tesseract-jax in one run."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from benchmarks import _servers
from benchmarks._harness import MANY_TURNS, Row, interleaved, show
from benchmarks._memory import keep_freed_memory
from chainrule import apply_component
from chainrule._jaxpr._host_call import lower_host_call
from chainrule.client import Component
from chainrule.runtime import load_component

# The same source is a component of ours and a Tesseract.
NO_OP = """
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float32]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float32]]

def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y=inputs.x)

def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": cotangent_vector["y"]}
"""

IN_JAX = """
import equinox as eqx
import jax.numpy as jnp
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32
from tesseract_core.runtime.jax_recipes import jax_abstract_eval, jax_apply, jax_jvp, jax_vjp

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float32]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float32]]

@eqx.filter_jit
def apply_jit(inputs):
    x = inputs["x"]
    return {"y": jnp.sin(x) * x + 0.5 * x}

def apply(inputs: InputSchema) -> OutputSchema:
    out = jax_apply(apply_jit, inputs)
    return out

def abstract_eval(abstract_inputs):
    return jax_abstract_eval(apply_jit, abstract_inputs)

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return jax_jvp(apply_jit, inputs, jvp_inputs, jvp_outputs, tangent_vector)

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return jax_vjp(apply_jit, inputs, vjp_inputs, vjp_outputs, cotangent_vector)
"""

SLOW = NO_OP.replace("return OutputSchema", "import time; time.sleep(0.05); return OutputSchema")


@jax.jit
def in_jax(x: jax.Array) -> jax.Array:
    """What `IN_JAX` computes, compiled by itself as it is there: XLA then sees the same program."""
    return jnp.sin(x) * x + 0.5 * x


def run() -> list[Row]:
    # Without it, calls with results of some megabytes fault in up to a thousand pages each (`ru_minflt`), or
    # none, as the heap happens to lie: plain JAX, pure_callback and we alike. As our server processes do.
    keep_freed_memory()
    with contextlib.ExitStack() as stack:
        return [
            *_inlined(stack),
            *_pipeline(stack),
            *_host_call(stack),
            *_served(stack),
            *_fan_out(stack),
            *_overlapping(stack),
        ]


def _write(stack: contextlib.ExitStack, source: str) -> Path:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    path = Path(folder) / "tesseract_api.py"
    path.write_text(source)
    return path


def _ours(component: Any, **options: Any) -> Callable[[jax.Array], jax.Array]:
    return lambda x: apply_component(component, {"x": x}, **options)["y"]


def _peers(tesseract: Any) -> Callable[[jax.Array], jax.Array]:
    from tesseract_jax import apply_tesseract

    return lambda x: apply_tesseract(tesseract, {"x": x})["y"]


def _timed(functions: dict[str, Any], n: int, **settings: Any) -> dict[str, float]:
    """Seconds per call of compiled functions of one vector."""
    x = jnp.linspace(0.1, 1.0, n, dtype=jnp.float32)
    compiled = {name: jax.jit(function) for name, function in functions.items()}
    calls = {
        name: (lambda f=function: jax.block_until_ready(f(x)))
        for name, function in compiled.items()
    }
    return interleaved(calls, **settings)


def _against(
    claim: str, functions: dict[str, Any], n: int, floor: str, bar: float | None, note: str = ""
) -> Iterator[Row]:
    """Us against the floor, then us against the peer: what runs after the peer pays for its caches."""
    ours = functions["us"]
    # Inlined, the compiled program is that of plain JAX but for names. With large arrays one and the same
    # program takes anything from 3.2 to 4.3 ms, as they happen to lie, and goes on so: hence many times, all
    # anew, and for each contestant the time in which they lay best.
    several = [
        _timed({"us": ours, floor: functions[floor]}, n, rounds=21, min_round_s=0.003)
        for _ in range(15)
    ]
    seconds = {name: min(each[name] for each in several) for name in ("us", floor)}
    yield Row(claim, seconds["us"], seconds[floor], floor, bar, note=note)
    if "tesseract-jax" in functions:
        seconds = _timed({"us": ours, "tesseract-jax": functions["tesseract-jax"]}, n, rounds=9)
        yield Row(claim, seconds["us"], seconds["tesseract-jax"], "tesseract-jax")


def _inlined(stack: contextlib.ExitStack) -> Iterator[Row]:
    from tesseract_core import Tesseract

    path = _write(stack, IN_JAX)
    functions = {
        "us": _ours(load_component(path)),
        "plain JAX": in_jax,
        "tesseract-jax": _peers(Tesseract.from_tesseract_api(path)),
    }
    for n in (1, 10_000, 1_000_000):
        yield from _against(f"JAX component under jit, n = {n:g}", functions, n, "plain JAX", 1.05)
        graded = {
            name: jax.value_and_grad(lambda x, f=function: f(x).sum())
            for name, function in functions.items()
            if n < 1_000_000 or name != "tesseract-jax"  # JAX inside its callback deadlocks there
        }
        yield from _against(f"value_and_grad of it, n = {n:g}", graded, n, "plain JAX", 1.05)


def _pipeline(stack: contextlib.ExitStack) -> Iterator[Row]:
    from tesseract_core import Tesseract

    path = _write(stack, IN_JAX)
    functions = {
        "us": _ours(load_component(path)),
        "plain": in_jax,
        "peer": _peers(Tesseract.from_tesseract_api(path)),
    }

    def optimise(f: Callable[[jax.Array], jax.Array]) -> Callable[[], Any]:
        step = jax.jit(lambda x: x - 0.01 * jax.grad(lambda x: (f(f(f(x))) ** 2).sum())(x))

        def descend() -> Any:
            x = jnp.linspace(0.1, 1.0, 100, dtype=jnp.float32)
            for _ in range(100):
                x = step(x)
            return jax.block_until_ready(x)

        return descend

    claim = "three components, 100 gradient steps, n = 100"
    floor = {name: optimise(functions[name]) for name in ("us", "plain")}
    seconds = interleaved(floor, **MANY_TURNS)
    yield Row(claim, seconds["us"], seconds["plain"], "plain JAX", 1.05)
    seconds = interleaved({"us": floor["us"], "peer": optimise(functions["peer"])}, rounds=5)
    yield Row(claim, seconds["us"], seconds["peer"], "tesseract-jax")


def _host_call(stack: contextlib.ExitStack) -> Iterator[Row]:
    from tesseract_core import Tesseract

    path = _write(stack, NO_OP)

    def callback(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    functions = {
        "us": _ours(load_component(path)),
        "jax.pure_callback": callback,
        "tesseract-jax": _peers(Tesseract.from_tesseract_api(path)),
    }
    note = "pure_callback of the bare function"
    for n, bar in ((1, 0.5), (100_000, None), (1_000_000, 0.7)):
        claim = f"no-op NumPy component under jit, in process, n = {n:g}"
        yield from _against(claim, functions, n, "jax.pure_callback", bar, note)
    yield from _copy_floor(functions)


def _copy_floor(functions: dict[str, Any]) -> Iterator[Row]:
    """What no host call can do without: the result is another array, which has to be filled.

    An author who may keep his inputs has a copy of them: with that there are two copies, in ours and in the
    one of JAX.
    """
    n = 1_000_000
    contestants = {name: functions[name] for name in ("us", "jax.pure_callback")}
    twice = "an FFI call that copies in and out"
    floors = {
        "XLA copying the array": jnp.copy,
        "an FFI call that only copies": _bare_copy(lambda operand: operand),
        twice: _bare_copy(lambda operand: operand.copy()),
    }
    seconds = _timed({**contestants, **floors}, n, rounds=101)
    claim = f"no-op NumPy component under jit, in process, n = {n:g}"
    for name in floors:
        yield Row(claim, seconds["us"], seconds[name], name, 1.15 if name == twice else None)
        yield Row(f"{name}, n = {n:g}", seconds[name], seconds["jax.pure_callback"],
                  "jax.pure_callback")  # fmt: skip


def _bare_copy(taken: Callable[[Any], Any]) -> Callable[[jax.Array], jax.Array]:
    class Copy:
        targets: ClassVar[dict[Any, Any]] = {}

        def run(self, operands: list[Any], results: list[Any]) -> None:
            results[0][...] = taken(operands[0])

    copy, primitive = Copy(), Primitive("bare_copy")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda x: [x])
    mlir.register_lowering(
        primitive, lambda ctx, x: lower_host_call(ctx, x, function=copy, ordered=False)
    )
    return lambda x: primitive.bind(x)[0]


def _served(stack: contextlib.ExitStack) -> Iterator[Row]:
    from tesseract_core import Tesseract

    path = _write(stack, NO_OP)
    port = stack.enter_context(_servers.ours(path, 1))
    ours = stack.enter_context(Component.from_url(f"http://127.0.0.1:{port}"))
    shared = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    peer_port = stack.enter_context(_servers.peer(path, shared))
    pooled = Tesseract.from_source(
        path,
        output_format="json+binref",
        output_path=shared,
        experimental_binref_pool=True,
        python_executable=sys.executable,
    )
    functions = {
        "us": _ours(ours),
        "base64": _peers(Tesseract.from_url(f"http://127.0.0.1:{peer_port}")),
        "binref pool": _peers(stack.enter_context(pooled)),
    }
    for n, bar in ((1, 0.5), (100_000, 0.5), (1_000_000, 0.5)):
        seconds = _timed(functions, n, rounds=15, min_round_s=0.05)
        best = min(("base64", "binref pool"), key=seconds.__getitem__)
        claim = f"served on this host, under jit, n = {n:g}"
        yield Row(claim, seconds["us"], seconds[best], f"tesseract-jax, {best}", bar)


def _fan_out(stack: contextlib.ExitStack) -> Iterator[Row]:
    port = stack.enter_context(_servers.ours(_write(stack, SLOW), 2))
    component = stack.enter_context(Component.from_url(f"http://127.0.0.1:{port}"))
    x = jnp.ones((64, 3), jnp.float32)
    seconds = {}
    for method in ("sequential", "auto"):
        function = jax.jit(jax.vmap(_ours(component, vmap_method=method)))
        jax.block_until_ready(function(x))
        start = time.perf_counter()
        jax.block_until_ready(function(x))
        seconds[method] = time.perf_counter() - start
    claim = "vmap of 64 calls of 50 ms, served with 2 workers"
    yield Row(claim, seconds["auto"], seconds["sequential"], "sequential", 0.55)


def _overlapping(stack: contextlib.ExitStack) -> Iterator[Row]:
    """Two calls that do not depend on each other, as they are lowered and one after the other."""
    port = stack.enter_context(_servers.ours(_write(stack, SLOW), 2))
    component = stack.enter_context(Component.from_url(f"http://127.0.0.1:{port}"))

    def pair(**options: Any) -> Callable[[jax.Array], jax.Array]:
        call = _ours(component, **options)
        return lambda x: call(x) @ call(jnp.sin(x) + 1)

    found = _timed({"us": pair(), "ordered": pair(effects="ordered")}, 3, rounds=7)
    claim = "two independent calls of 50 ms in one program, served with 2 workers"
    against = "one after the other"
    yield Row(claim, found["us"], found["ordered"], against, 0.65)


if __name__ == "__main__":
    show(run())
