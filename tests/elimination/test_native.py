"""Native kernels give what XLA gives, for every operation, batch size and layout."""

import ctypes
import importlib.util
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.elimination import jacobian
from chainrule.elimination._native import native_function
from chainrule.errors import CapabilityError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llvmlite") is None, reason="llvmlite is not installed"
)


def native(function, *args):
    """A function of arrays that returns a list of arrays, as a native kernel."""
    return native_function(jax.make_jaxpr(function)(*args))


def samples(shape, dtype=np.float32, count=2, low=0.1, high=0.9):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.uniform(low, high, size=shape), dtype) for _ in range(count)]


UNARY = {
    "neg": jnp.negative, "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "exp": jnp.exp,
    "log": jnp.log, "sqrt": jnp.sqrt, "rsqrt": jax.lax.rsqrt, "tanh": jnp.tanh, "sinh": jnp.sinh,
    "cosh": jnp.cosh, "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan,
    "asinh": jnp.arcsinh, "atanh": jnp.arctanh, "acosh": lambda x: jnp.arccosh(x + 1),
    "abs": lambda x: jnp.abs(x - 0.5), "sign": lambda x: jnp.sign(x - 0.5), "log1p": jnp.log1p,
    "expm1": jnp.expm1, "exp2": jnp.exp2, "erf": jax.lax.erf, "erfc": jax.lax.erfc,
    "cbrt": jnp.cbrt, "logistic": jax.nn.sigmoid, "cube": lambda x: x**3, "inverse": lambda x: x**-2,
    "square": jnp.square, "relu": lambda x: jax.nn.relu(x - 0.5), "silu": jax.nn.silu,
}  # fmt: skip
BINARY = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "pow": jnp.power,
    "atan2": jnp.arctan2, "max": jnp.maximum, "min": jnp.minimum,
    "where": lambda x, y: jnp.where((x > y) & ~(x < 0.2), x, y * 2),
    "compare": lambda x, y: (x <= y).astype(x.dtype) + (x == y) + (x != y) + (x >= y),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_operation(dtype):
    with jax.enable_x64(True):
        x, y = samples(37, dtype)

        def function(x, y):
            return [f(x) for f in UNARY.values()] + [f(x, y) for f in BINARY.values()]

        kernel = jax.jit(jax.vmap(native(function, x[0], y[0])))
        tolerance = 2e-5 if dtype == np.float32 else 1e-12
        names = [*UNARY, *BINARY]
        for name, ours, theirs in zip(names, kernel(x, y), function(x, y), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("batch", [(), (1,), (15,), (16,), (33,), (3, 11), (0,)])
def test_any_batch(batch):
    x, y = samples(batch)

    def function(x, y):
        return [jnp.sin(x) * y, x + 1.0, jnp.float32(3.0)]

    kernel = native(function, *samples(()))
    for _ in batch:
        kernel = jax.vmap(kernel)
    results = jax.jit(kernel)(x, y)
    np.testing.assert_allclose(results[0], jnp.sin(x) * y, rtol=1e-5)
    np.testing.assert_allclose(results[1], x + 1.0)
    np.testing.assert_allclose(results[2], np.full(batch, 3.0))


def test_unbatched_operand_is_broadcast():
    x, _ = samples(20)
    kernel = native(lambda x, y: [x * y], *samples(()))
    (result,) = jax.vmap(kernel, in_axes=(0, None))(x, jnp.float32(2.0))
    np.testing.assert_allclose(result, 2 * x)


def test_arrays_and_their_rearrangements():
    a, b = samples((17, 3, 4))

    def function(a, b):
        c = jnp.concatenate([a[:, :2], b[:, 2:]], axis=1)
        d = (a @ b.T).reshape(9)[::-1]
        e = jnp.pad(c.sum(axis=0), (1, 2)) + jnp.arange(7)
        low, high = jnp.split(a, 2, axis=1)
        return [
            c.T,
            d,
            e,
            a.max(axis=1),
            b.prod(),
            jnp.broadcast_to(low[0] - high[0], (2, 2)),
            a > b,
            jax.lax.reshape(a, (6, 2), dimensions=(1, 0)),
            jax.lax.pad(b, jnp.float32(2.0), [(-1, 2, 1), (1, -2, 0)]),
            jnp.tile(jnp.stack([a, b], axis=1), (1, 1, 2)),
        ]

    kernel = jax.jit(jax.vmap(native(function, a[0], b[0])))
    for ours, theirs in zip(kernel(a, b), jax.vmap(function)(a, b), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_booleans_and_selections():
    (x,) = samples((17, 3), low=-1, high=1, count=1)
    case = jnp.array([0, 2, 1])

    def function(x):
        small, positive = jnp.abs(x) < 0.5, x > 0
        return [
            x.astype(bool),
            small ^ positive,
            small != positive,
            jnp.maximum(small, positive),
            jnp.minimum(small, positive),
            small.max(),
            jnp.any(small),
            jnp.all(small),
            jax.lax.select_n(case, x, x * x, x * 3),
            jax.lax.select_n(jnp.array([1, 0, 1]), x, x * x),
            jnp.where(jnp.array([True, False, True]), x, 7.0),
        ]

    kernel = jax.jit(jax.vmap(native(function, x[0])))
    for ours, theirs in zip(kernel(x), jax.vmap(function)(x), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_products_of_matrices_without_entries_and_in_another_dtype():
    (x,) = samples(4, count=1)

    def function(x):
        both = (((0,), (0,)), ((), ()))
        return [
            x[:0] @ x[:0] + x,
            jnp.einsum("ij,jk->ik", x.reshape(4, 1)[:, :0], x.reshape(1, 4)[:0]) + x,
            jax.lax.dot_general(x, x, both, preferred_element_type=jnp.float64),
        ]

    for ours, theirs in zip(native(function, x)(x), function(x), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_entries_at_known_places():
    (x,) = samples((5, 6), count=1)
    places = jnp.array([4, 0, 1])

    def function(x):
        return [
            x[places] * 2,
            x.reshape(2, 3)[:, places[1:]],
            x.at[places].set(x[:3] ** 2),
            x.at[places].add(x[:3] ** 2),
            x.reshape(2, 3).at[1, ::2].add(5.0),
        ]

    # The kernel is made while another program is being traced.
    kernel = jax.jit(jax.vmap(lambda row: native(function, x[0])(row)))
    for ours, theirs in zip(kernel(x), jax.vmap(function)(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_where_maximum_and_clip_have_native_jacobians(caplog):
    """Their partials are masks, not integers."""
    x = np.array([0.25, -0.75])

    def function(x):
        return jnp.where(x > 0, x**2, x) * jnp.maximum(x, 0.1) + jnp.clip(x, -0.2, 0.3)

    with caplog.at_level("INFO", logger="chainrule.elimination"):
        ours = jax.jit(jacobian(function, backend="native", order="reverse"))(x)
    assert not caplog.records
    np.testing.assert_allclose(ours, np.diag([3 * 0.25**2 + 1, 0.1]), rtol=1e-14)


def test_what_llvm_refuses_is_left_to_xla():
    from chainrule.elimination._native._cpu import compile_module

    with pytest.raises(CapabilityError, match="LLVM"):
        compile_module("define i32 @handler() { ret float 1.0 }")


def test_special_values_survive():
    x = jnp.array([jnp.nan, jnp.inf, -jnp.inf, -0.0, 0.0, 1.0], jnp.float32)

    def function(x):
        return [jnp.maximum(x, 0.5), jnp.sign(x), x * 0.0, x + jnp.inf, jnp.where(x != x, 7.0, x)]

    kernel = jax.vmap(native(function, x[0]))
    for ours, theirs in zip(kernel(x), function(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_results_that_are_one_number_everywhere():
    numbers = [0.0, 1.0, -0.0, jnp.nan, -jnp.inf, 0.1, 0.0]
    shapes = [(), (), (3,), (), (2,), (), (3,)]

    def function(x):
        full = [
            jnp.full(shape, number, x.dtype) for shape, number in zip(shapes, numbers, strict=True)
        ]
        return [*full, x * 2]

    for dtype in (np.float32, np.float64):
        (x,) = samples(37, dtype, count=1)
        results = jax.jit(jax.vmap(native(function, x[0])))(x)
        for ours, shape, number in zip(results, shapes, numbers, strict=False):
            expected = np.full((37, *shape), number, dtype)
            np.testing.assert_array_equal(ours, expected)
            np.testing.assert_array_equal(np.signbit(ours), np.signbit(expected))


@pytest.mark.parametrize("threads", ["one", "four", "none can be started"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loops_of_any_length(dtype, threads, monkeypatch):
    """Long ones are shared by several threads, in parts that need not be equal."""
    from chainrule.elimination._native import _cpu
    from chainrule.elimination._native._lower import Kernel

    monkeypatch.setattr(_cpu, "processors", lambda: 1 if threads == "one" else 4)
    monkeypatch.setattr(_cpu, "_PART_NS", 1)
    calls = []
    if threads == "none can be started":
        import llvmlite.binding as llvm

        refuse = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: calls.append(0) or 11)  # EAGAIN
        llvm.add_symbol("chainrule_test_refuse", ctypes.cast(refuse, ctypes.c_void_p).value)
        call = Kernel.call
        monkeypatch.setattr(
            Kernel,
            "call",
            lambda self, builder, name, *given: call(
                self, builder, name.replace("pthread_create", "chainrule_test_refuse"), *given
            ),
        )

    def function(x, y):
        return [x * y + 1, jnp.stack([x, -y, x - y]), jnp.full(3, 4, x.dtype), jnp.zeros_like(x)]

    with jax.enable_x64(True):
        kernel = jax.jit(jax.vmap(native(function, *samples((), dtype))))
        for size in (0, 1, 7, 40, 1000, 65_536, 300_007):
            x, y = samples(size, dtype)
            results = kernel(x, y)
            expected = jax.vmap(function)(x, y)
            for ours, theirs in zip(results, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=4 * np.finfo(dtype).eps)
    assert bool(calls) == (threads == "none can be started")


def test_kernel_can_be_differentiated():
    x, y = samples(())

    def function(x, y):
        return [jnp.sin(x) * y**2]

    kernel = native(function, x, y)
    ours = jax.grad(lambda x: kernel(x, y)[0])(x)
    np.testing.assert_allclose(ours, jnp.cos(x) * y**2, rtol=1e-6)
    hessian = jax.hessian(lambda x: kernel(x, y)[0])(x)
    np.testing.assert_allclose(hessian, -jnp.sin(x) * y**2, rtol=1e-6)


def test_shared_values_are_computed_once():
    from chainrule.elimination._native._scalars import scalarise

    def function(x):
        return [jnp.sin(x) * 1.0 + 0.0, jnp.sin(x) * (jnp.float32(2.0) * 3.0)]

    scalars = scalarise(jax.make_jaxpr(function)(jnp.float32(1.0)))
    operations = [node.operation for node in scalars.nodes]
    assert operations.count("sin") == 1
    assert operations.count("mul") == 1
    assert operations.count("add") == 0


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [
        (lambda x: [jnp.sort(x)], jnp.ones(3), "sort"),
        (lambda x: [x + 1], jnp.int32(1), "int32"),
        (lambda x: [jnp.outer(x, x)], jnp.ones(300), "scalar operations"),
        (lambda x: [x[:0]], jnp.ones(3), "non-empty"),
        (lambda x: [(x > 0) < (x > 1)], jnp.ones(3), "booleans"),
        (lambda x: [x.at[jnp.array([1, 1])].add(2.0)], jnp.ones(3), "of its own"),
        (lambda x: [x.at[jnp.array([7])].get(mode="fill")], jnp.ones(3), "what is there"),
    ],
)
def test_what_has_no_native_form_says_why(function, argument, reason):
    with pytest.raises(CapabilityError, match=reason) as caught:
        native(function, argument)
    assert caught.value.code == "native_unavailable"


@pytest.mark.parametrize("size", [1, 256, 300])
def test_gpu_kernel_in_plain_jax(size):
    from chainrule.elimination._native._gpu import batched_kernel
    from chainrule.elimination._native._kernel import on_batches
    from chainrule.elimination._native._scalars import scalarise

    def function(x, y):
        return [jnp.sin(x) * y, jnp.where(x > y, x / y, jnp.float32(2.0)), x < y, jnp.float32(3.0)]

    program = jax.make_jaxpr(function)(*samples(()))
    kernel = on_batches(batched_kernel(scalarise(program), interpret=True), function)
    x, y = samples(size)
    for ours, theirs in zip(jax.vmap(kernel)(x, y), jax.vmap(function)(x, y), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    (unbatched, *_) = jax.vmap(kernel, in_axes=(0, None))(x, jnp.float32(0.5))
    np.testing.assert_allclose(unbatched, jnp.sin(x) * 0.5, rtol=1e-6)
    np.testing.assert_allclose(kernel(x[0], y[0])[0], jnp.sin(x[0]) * y[0], rtol=1e-6)


def test_gpu_kernel_is_made_of_scalars():
    from chainrule.elimination._native._gpu import batched_kernel
    from chainrule.elimination._native._scalars import scalarise

    program = jax.make_jaxpr(lambda x: [x * 2])(jnp.ones(3))
    with pytest.raises(CapabilityError, match="arrays"):
        batched_kernel(scalarise(program))


def test_every_device_computes_its_part_of_a_batch():
    """Also where a mesh is part of types, over two batch axes, and with an operand that all share."""
    source = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        from chainrule.elimination import jacobian

        def f(x, a):
            return jnp.stack([jnp.sin(x[0]) * x[1], x[0] * jnp.exp(a * x[1]), x[0] / x[1]])

        def several(method):
            once = jax.vmap(method, (0, None))
            return jax.jit(once), jax.jit(jax.vmap(once, (1, None), 1))

        x = np.random.default_rng(0).uniform(0.5, 1, (8, 3, 2)).astype("float32")
        native, plain = several(jacobian(f, backend="native")), several(jax.jacfwd(f))
        for kind in (AxisType.Auto, AxisType.Explicit):
            mesh = jax.make_mesh((4,), ("i",), axis_types=(kind,))
            with jax.set_mesh(mesh):
                a = jnp.float32(2)
                for found, wanted, x_ in zip(native, plain, (x[:, 0], x)):
                    operand = jax.device_put(x_, NamedSharding(mesh, P("i")))
                    result, reference = found(operand, a), wanted(operand, a)
                    np.testing.assert_allclose(result, reference, rtol=1e-5)
                    assert result.sharding.is_equivalent_to(reference.sharding, result.ndim)
                    text = found.lower(operand, a).compile().as_text()
                    assert "chainrule_native" in text and "all-gather" not in text
                whole = jax.device_put(x, NamedSharding(mesh, P(None, None, None)))
                assert native[1](whole, a).sharding.is_fully_replicated
    """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    code = textwrap.dedent(source)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
