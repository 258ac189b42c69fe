"""The call itself: buffers, lifetimes, effects, compilation caches, several devices."""

import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.serialize_executable import serialize

from chainrule import apply_component, component_errors, from_callable
from chainrule._jaxpr import call_frame
from chainrule._lru_cache import LRUCache
from chainrule.bridge import _host
from chainrule.errors import CapabilityError, ComponentError

X = np.arange(3.0)


def identity(function=lambda x: x, **options):
    return from_callable(function, abstract=lambda x: x, **options)


def test_the_layouts_are_those_of_the_header():
    """Field by field, from the C header that ships with jaxlib."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    sizes = {"size_t": 8, "int64_t": 8, "int64_t*": 8, "int32_t": 4, "int": 4}

    def offsets(name, known):
        body = re.search(rf"struct {name} \{{(.*?)\n\}}", header, re.DOTALL)[1]
        body = re.sub(r"//[^\n]*", "", body)
        found, position = {}, 0
        for kind, field in re.findall(r"([\w ]+?\**)\s+(\w+);", body):
            kind = kind.replace("const ", "").strip()
            size = known.get(kind) or (8 if kind.endswith("*") else sizes.get(kind, 4))
            alignment = min(size, 8)
            position = -(-position // alignment) * alignment
            found[field] = position
            position += size
        return found, -(-position // 8) * 8

    arguments, arguments_size = offsets("XLA_FFI_Args", {})
    attributes, attributes_size = offsets("XLA_FFI_Attrs", {})
    assert (arguments["size"], arguments["args"], arguments_size) == (16, 32, 40)
    assert (attributes["attrs"], attributes_size) == (40, 48)
    spans = {"XLA_FFI_Args": 40, "XLA_FFI_Rets": 40, "XLA_FFI_Attrs": 48}
    frame, _ = offsets("XLA_FFI_CallFrame", spans)
    assert frame["extension_start"] == call_frame.FRAME_EXTENSION
    assert (frame["api"], frame["stage"]) == (call_frame.FRAME_API, call_frame.FRAME_STAGE)
    assert frame["args"] + arguments["args"] == call_frame.FRAME_OPERANDS
    assert frame["rets"] + arguments["args"] == call_frame.FRAME_RESULTS
    assert frame["attrs"] + attributes["attrs"] == call_frame.FRAME_ATTRIBUTES
    assert call_frame.CALL_FRAME.size == frame["attrs"] + 48
    buffer, _ = offsets("XLA_FFI_Buffer", {})
    assert buffer["data"] == call_frame.BUFFER_DATA
    assert buffer["rank"] == call_frame.BUFFER_RANK
    assert buffer["dims"] == call_frame.BUFFER_DIMENSIONS
    scalar, _ = offsets("XLA_FFI_Scalar", {})
    assert scalar["value"] == call_frame.SCALAR_VALUE
    api, _ = offsets("XLA_FFI_Api", {"XLA_FFI_Api_Version": 24})
    assert (api["api_version"], api["internal_api"] + 8) == (16, call_frame.API_HEADER.size)
    error, size = offsets("XLA_FFI_Error_Create_Args", {})
    assert (error["message"], error["errc"], call_frame.ERROR_CREATE.size) == (16, 24, size)
    assert re.search(r"API_MAJOR (\d+)", header)[1] == "0"


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "complex64", "complex128"],
)  # fmt: skip
def test_every_dtype_goes_through(dtype):
    seen = []

    def f(x):
        seen.append(x.dtype.name)
        return x

    x = jnp.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    np.testing.assert_array_equal(jax.jit(identity(f))(x), x)
    assert seen == [dtype]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3, 4)])
def test_every_shape_goes_through(shape):
    x = jnp.arange(float(np.prod(shape, dtype=int))).reshape(shape)
    np.testing.assert_array_equal(jax.jit(identity())(x), x)
    np.testing.assert_array_equal(jax.jit(lambda x: identity()(x.T))(x), x.T)


def test_the_callback_is_the_fallback(monkeypatch):
    monkeypatch.setenv("CHAINRULE_HOST_CALL", "callback")
    f = jax.jit(identity(lambda x: 2 * x))
    assert "chainrule_host_call" not in f.lower(X).as_text()
    np.testing.assert_array_equal(f(X), 2 * X)

    def fail(x):
        raise LookupError("in the callback")

    with pytest.raises(LookupError, match="in the callback"), component_errors():
        jax.block_until_ready(jax.jit(identity(fail))(X))


def test_the_handler_is_used_where_it_works():
    assert "chainrule_host_call" in jax.jit(identity()).lower(X).as_text()


def test_ordered_effects_happen_once_each_in_order():
    log = []

    def note(x):
        log.append(float(x))
        return x

    f = from_callable(note, abstract=lambda x: x, effects="ordered")

    @jax.jit
    def run(x):
        f(x)
        f(x)  # pure calls would be merged, and dropped as they are not used
        f(x + 1)
        return jax.lax.fori_loop(0, 2, lambda i, x: x + f(10.0 + i), x)

    run(1.0).block_until_ready()
    jax.effects_barrier()
    assert log == [1, 1, 2, 10, 11]
    log.clear()
    jax.vmap(f)(jnp.arange(3.0))
    assert log == [0, 1, 2]


@pytest.mark.parametrize("kind", [float, np.asarray, jnp.asarray])
def test_calls_with_known_numbers_are_part_of_the_program_too(kind):
    one, log = kind(1.0), []

    def note(x):
        log.append(float(x))
        return x

    f = from_callable(note, abstract=lambda x: x, effects="ordered")
    program = jax.jit(lambda x: jax.lax.scan(lambda x, _: (x + f(one), None), x, length=2)[0])
    program.lower(0.0)
    assert log == []
    assert [float(program(0.0)), float(program(1.0))] == [2.0, 3.0]
    jax.effects_barrier()
    assert log == [1.0] * 4


def test_a_compiled_program_keeps_what_it_calls_alive():
    def build():
        f = identity(lambda x: 3 * x)
        return jax.jit(lambda x: f(x)).lower(X).compile()

    program = build()
    gc.collect()
    np.testing.assert_array_equal(program(X), 3 * X)


def test_a_program_may_be_dropped_before_it_has_run():
    """XLA runs it later, on a thread of its own; the small product makes it worth one."""
    f = identity(lambda x: x + 1)
    matrix = np.ones((300, 300))
    results = [jax.jit(lambda x, k=k: f(f(x @ x) @ x) + k)(matrix) for k in range(3)]
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full((300, 300), 301 * 300 + 1 + k))


def test_a_function_may_return_the_same_buffer_every_time():
    """JAX copies large arrays later, or looks at them forever."""
    buffer = np.zeros(1_000_000)

    def f(x):
        buffer[:] = x
        return buffer

    numbers = [jnp.asarray(float(n)) for n in range(8)]
    results = list(map(from_callable(f, abstract=buffer), numbers))
    assert [float(result.sum()) / buffer.size for result in results] == list(range(8))


def test_outside_of_jit_nothing_is_transferred_implicitly():
    f = identity(jvp=lambda p, t: t[0])
    x = jax.device_put(X)
    with jax.transfer_guard("disallow"):
        for found in (f(x), jax.vmap(f)(x), *jax.jvp(f, (x,), (x,))):
            np.testing.assert_array_equal(found, X)


def test_what_nobody_can_call_is_freed():
    def build():
        big = np.ones(10)
        f = identity(lambda x: x * big[0])
        jax.jit(lambda x: f(x)).lower(X).compile()(X)
        return weakref.ref(big)

    reference = build()
    jax.clear_caches()
    gc.collect()
    assert reference() is None


def test_exporting_a_host_call_is_a_clear_error():
    with pytest.raises(CapabilityError, match="exported") as caught:
        jax.export.export(jax.jit(identity()))(X)
    assert caught.value.code == "not_exportable"


def test_threads_can_call_at_the_same_time():
    barrier = threading.Barrier(2, timeout=300)

    def wait(x):
        if x[0] > 0:
            barrier.wait()
        return x + 1

    x = np.zeros(3, "float32")  # `enable_x64` is a setting of one thread
    f = jax.jit(identity(wait))
    with ThreadPoolExecutor(2) as threads:
        threads.submit(f, x).result()  # JAX makes the first call of a program under a lock
        left, right = threads.map(lambda i: np.asarray(f(x + i)), (1, 2))
    np.testing.assert_array_equal([left, right], [x + 2, x + 3])


class Remote:
    """A component that is not in this process, as far as the bridge can tell."""

    available_endpoints = ("apply", "abstract_eval")
    openapi_schema = {"components": {"schemas": {"ApplyInputSchema": {}, "ApplyOutputSchema": {}}}}  # noqa: RUF012
    server_capabilities = object()

    def __init__(self, barrier):
        self.barrier = barrier

    def apply(self, inputs):
        self.barrier.wait()
        return {"y": inputs["x"] + 1}

    def abstract_eval(self, inputs):
        return {"y": inputs["x"]}


class CountingRemote(Remote):
    def __init__(self):
        super().__init__(threading.Barrier(1))
        self.calls = 0

    def apply(self, inputs):
        self.calls += 1
        return super().apply(inputs)


def test_independent_calls_of_remote_components_overlap():
    """Each call waits until the other has begun: one after the other they would never end."""
    barrier = threading.Barrier(2, timeout=300)
    left, right = Remote(barrier), Remote(barrier)

    @jax.jit
    def both(x):
        return apply_component(left, {"x": x})["y"] @ apply_component(right, {"x": x})["y"]

    np.testing.assert_allclose(both(X), (X + 1) @ (X + 1))


def test_the_first_of_several_calls_is_started_early_too():
    """Also equal calls, and those of functions that are compiled once and called twice."""
    barrier = threading.Barrier(2, timeout=300)
    remote = Remote(barrier)

    def ask(x):
        return apply_component(remote, {"x": x})["y"]

    for each in (ask, jax.jit(ask)):
        both = jax.jit(lambda x, y, each=each: each(x) @ each(y))
        np.testing.assert_allclose(both(X, 2 * X), (X + 1) @ (2 * X + 1))


def test_independent_calls_overlap_wherever_their_operands_come_from():
    """Also where XLA would rather finish one before it computes the operands of the other."""
    barrier = threading.Barrier(3, timeout=300)
    remote = Remote(barrier)

    def ask(x):
        return apply_component(remote, {"x": x})["y"]

    @jax.jit
    def program(x):
        left = ask(x)
        doubled = 2 * left
        right = ask(jnp.sin(x) + 1)
        third = jax.lax.cond(x[0] > 2, lambda: left, lambda: right) * ask(jnp.cumsum(x))
        return doubled + right + third

    sine = np.sin(X) + 2
    np.testing.assert_allclose(program(X), 2 * (X + 1) + sine + sine * (np.cumsum(X) + 1))


def test_calls_that_depend_on_calls_overlap_too():
    barrier = threading.Barrier(2, timeout=300)
    left, right = Remote(barrier), Remote(barrier)

    def twice(remote, x):
        once = apply_component(remote, {"x": jnp.cumsum(x)})["y"]
        return apply_component(remote, {"x": jnp.sin(once)})["y"]

    program = jax.jit(lambda x: twice(left, x) @ twice(right, x))
    expected = np.sin(np.cumsum(X) + 1) + 1
    np.testing.assert_allclose(program(X), expected @ expected)


def test_calls_that_wait_for_others_are_merged_all_the_same():
    remote, other = CountingRemote(), CountingRemote()

    def ask(x, remote=remote):
        return apply_component(remote, {"x": x})["y"]

    @jax.jit
    def program(x):
        first, second = ask(jnp.sin(x)), ask(jnp.sin(x))
        return first + second + ask(first, other) + ask(x, other)

    sine = np.sin(X)
    np.testing.assert_allclose(program(X), 2 * (sine + 1) + (sine + 2) + (X + 1))
    assert (remote.calls, other.calls) == (1, 2)


def test_calls_with_operands_that_differ_in_a_detail_are_not_merged():
    remote = CountingRemote()

    @jax.jit
    def program(x):
        ways = [
            x.astype("float16").astype("float64"),
            x.astype("float32").astype("float64"),
            x.astype("float16").astype("float64"),
            jnp.roll(x, 1),
            jnp.roll(x, 2),
            x * 2,
            x * 3,
        ]
        return jnp.stack([apply_component(remote, {"x": way})["y"] for way in ways])

    x = X / 3
    half, single = x.astype("float16"), x.astype("float32")
    wanted = [half, single, half, np.roll(x, 1), np.roll(x, 2), x * 2, x * 3]
    np.testing.assert_allclose(
        program(x), np.stack([np.float64(each) for each in wanted]) + 1, rtol=1e-14
    )
    assert remote.calls == 6


def test_calls_with_what_is_another_number_each_time_are_not_merged():
    remote, numbers = CountingRemote(), iter([1.0, 2.0])

    def draw():
        return np.float64(next(numbers))

    def ask():
        x = io_callback(draw, jax.ShapeDtypeStruct((), np.float64))
        return apply_component(remote, {"x": x})["y"]

    assert float(jax.jit(lambda: ask() * ask())()) == (1 + 1) * (2 + 1)


def test_starting_calls_early_leaves_others_alone():
    """A ticket is a constant at the end of a call's operands, and so may be what another call takes."""
    scale = from_callable(lambda x, factor: x * factor, abstract=lambda x, factor: x)
    remotes = [Remote(threading.Barrier(1)) for _ in range(2)]

    @jax.jit
    def program(x):
        asked = [apply_component(remote, {"x": x})["y"] for remote in remotes]
        return sum(asked, scale(x, 5.0) + scale(x, np.int32(7)))

    np.testing.assert_allclose(program(X), 12 * X + 2 * (X + 1))


def test_work_that_was_started_and_forgotten_is_done_again(monkeypatch):
    """Programs that fail half-way leave such work behind, so only so much of it is kept."""
    monkeypatch.setattr(_host, "_started", LRUCache(1))
    remotes = [Remote(threading.Barrier(1)) for _ in range(3)]
    program = jax.jit(lambda x: sum(apply_component(r, {"x": x})["y"] for r in remotes))
    np.testing.assert_allclose(program(X), 3 * (X + 1))


class Failing(Remote):
    def apply(self, inputs):
        raise ComponentError("the solver diverged", remote_traceback="line 7, in solve")


def test_a_remote_failure_keeps_its_remote_traceback():
    remote = Failing(None)
    f = jax.jit(lambda x: apply_component(remote, {"x": x})["y"])
    with pytest.raises(Exception, match="line 7, in solve"):
        jax.block_until_ready(f(X))
    with pytest.raises(ComponentError, match="diverged") as caught, component_errors():
        jax.block_until_ready(f(X))
    assert caught.value.remote_traceback == "line 7, in solve"
    assert "Remote traceback:\nline 7, in solve" in caught.value.__notes__


def run_python(source, **environment):
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, "PYTHONPATH": str(root / "src"), "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_several_devices_one_call_or_one_per_shard():
    output = run_python(
        """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from chainrule import from_callable
        shapes = []
        def f(x):
            shapes.append(x.shape); return 2 * x
        g = from_callable(f, vjp=lambda p, u: (2 * u,), abstract=lambda x: x)
        mesh = Mesh(np.array(jax.devices()), ("i",))
        x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("i")))
        result = jax.jit(g)(x)
        np.testing.assert_array_equal(result, 2 * np.arange(8.0))
        print(shapes); shapes.clear()
        np.testing.assert_array_equal(jax.jit(jnp.add)(result, x), 3 * np.arange(8.0))
        np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: g(x).sum()))(x), np.full(8, 2.0))
        shapes.clear()
        h = jax.jit(jax.shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
        np.testing.assert_array_equal(h(x), 2 * np.arange(8.0))
        print(sorted(shapes)); shapes.clear()
        y = jnp.arange(8.0).reshape(4, 2)
        np.testing.assert_array_equal(jax.pmap(g)(y), 2 * y)

        def sharded(f, out=P("i")):
            return jax.shard_map(f, mesh=mesh, in_specs=(P(), P("i")), out_specs=out)

        def gradients(f):  # of a shared and of a divided operand, across `shard_map` and inside
            across = jax.grad(lambda w, x: sharded(lambda w, x: w * f(w * x) * x)(w, x).sum(), (0, 1))
            inside = sharded(lambda w, x: jax.grad(lambda w: (f(w * x) * x).sum())(w), P())
            return *jax.jit(across)(2.0, x), jax.jit(inside)(2.0, x)

        for found, wanted in zip(gradients(g), gradients(lambda x: 2 * x), strict=True):
            np.testing.assert_array_equal(found, wanted)
        try:
            jax.jit(sharded(lambda w, x: g(x).sum(), P()))(2.0, x)
        except ValueError as error:
            print("replication" in str(error))  # of a sum that differs from device to device

        explicit = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
        scaled = from_callable(
            lambda x, w: w * np.sin(x), abstract=lambda x, w: x,
            vjp=lambda p, u: (p[1] * np.cos(p[0]) * u, np.sum(np.sin(p[0]) * u)),
        )

        def transformed(f, x, w):  # `x` is divided in its type
            def inner(x, w):
                return (x * f(x, w)).sum()

            return {
                "grad": jax.grad(inner, argnums=(0, 1))(x, w),
                "grad of vmap": jax.grad(lambda x: jax.vmap(f, (0, None))(x, w).sum())(x),
                "vmap of grad": jax.vmap(jax.grad(inner, argnums=(0, 1)), (0, None))(x, w),
                "jvp": jax.jvp(lambda x: f(x, w), (x,), (x,)),
                "jacrev": jax.jacrev(f)(x, w),
            }

        with jax.set_mesh(explicit):
            x = jax.device_put(jnp.arange(8.0), NamedSharding(explicit, P("i")))
            w = jnp.float32(2)
            wanted = transformed(lambda x, w: w * jnp.sin(x), x, w)
            for jit in (lambda f: f, lambda f: jax.jit(f, static_argnums=0)):
                found = jit(transformed)(scaled, x, w)
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), found, wanted)
                print([jax.typeof(g).sharding.spec for g in found["vmap of grad"] + found["grad"][:1]])

        other = jax.device_put(jnp.arange(3.0), jax.devices()[1])
        print({d.id for y in (g(other), jax.grad(lambda x: g(x).sum())(other)) for d in y.devices()})
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    specs = "[P('i',), P('i',), P('i',)]"
    assert output.splitlines() == [
        "[(8,)]", "[(2,), (2,), (2,), (2,)]", "True", specs, specs, "{1}"
    ]  # fmt: skip


def test_a_compiled_program_cannot_be_serialised_and_says_so():
    program = jax.jit(from_callable(np.sin, abstract=lambda x: x)).lower(np.ones(3)).compile()
    with pytest.raises(CapabilityError, match=r"HostCall\(apply of sin\)") as caught:
        serialize(program)
    assert caught.value.code == "not_serializable"


def test_programs_are_in_the_persistent_compilation_cache(tmp_path):
    source = """
        import jax, numpy as np
        from chainrule import from_callable
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        f = from_callable(lambda x: FACTOR * x, abstract=lambda x: x)
        print(jax.jit(lambda x: f(x) + 1)(np.ones(3, "float32")))
    """
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    assert run_python(source.replace("FACTOR", "2"), **environment).strip() == "[3. 3. 3.]"
    entries = {path.name for path in tmp_path.iterdir() if path.name.endswith("-cache")}
    assert entries
    # Another process, another function behind the same program: the number is looked up anew.
    assert run_python(source.replace("FACTOR", "5"), **environment).strip() == "[6. 6. 6.]"
    assert {path.name for path in tmp_path.iterdir() if path.name.endswith("-cache")} == entries
