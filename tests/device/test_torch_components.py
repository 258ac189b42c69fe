"""torch components on a GPU, in programs of JAX on the same GPU: device memory all the way."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import apply_component, component, component_errors
from chainrule.runtime import Array, Bool, Differentiable, Float32, Float64, Int32
from device.gpu import needs_gpu, points

torch = pytest.importorskip("torch")
pytestmark = [
    needs_gpu,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]

Vector = Differentiable[Array[("n",), Float32]]


@component(framework="torch", device="cuda")
def wave(x: Vector) -> Vector:
    assert x.is_cuda
    return torch.sin(2 * x) + 1


def call(x):
    return apply_component(wave, {"x": x})["result"]


def plain(x):
    return jnp.sin(2 * x) + 1


def assert_close(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), tolerance, tolerance)


@pytest.mark.parametrize("size", [0, 1, 7, 10_000, 1_000_000])
def test_values_and_gradients(size):
    x = points(size)
    assert_close(jax.jit(call)(x), plain(x))
    assert_close(call(x), plain(x))
    gradient = jax.jit(jax.value_and_grad(lambda x: (call(x) ** 2).sum()))
    for _ in range(3):
        value, slope = gradient(x)
        expected, expected_slope = jax.value_and_grad(lambda x: (plain(x) ** 2).sum())(x)
        assert_close(value, expected, 1e-3)
        assert_close(slope, expected_slope, 1e-4)


def test_results_stay_on_the_device():
    x = points(100)
    for found in (call(x), jax.jit(call)(x), jax.grad(lambda x: call(x).sum())(x)):
        assert found.devices() == x.devices()


def test_nothing_goes_through_the_host(monkeypatch):
    def refuse(self, *args, **kwargs):
        raise AssertionError("a tensor went to the host")

    x = points(1000)
    gradient = jax.jit(jax.grad(lambda x: call(x).sum()))
    monkeypatch.setattr(torch.Tensor, "cpu", refuse)
    monkeypatch.setattr(torch.Tensor, "numpy", refuse)
    found = gradient(x)
    monkeypatch.undo()
    assert_close(found, 2 * jnp.cos(2 * x))


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: jax.jacfwd(f),
        lambda f: jax.jacrev(f),
        lambda f: jax.hessian(lambda x: (f(x) ** 2).sum()),
        lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
        lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
        lambda f: lambda x: jax.vmap(jax.vmap(f))(jnp.stack([x, 2 * x])[None]),
        lambda f: lambda x: jax.vmap(jax.grad(lambda x: f(x).sum()))(jnp.stack([x, 2 * x])),
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), c.sum()), x, None, length=4),
        lambda f: lambda x: jax.lax.cond(x[0] > 1, f, lambda x: -f(x), x),
        lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 3)[0].sum()),
        lambda f: jax.grad(jax.checkpoint(lambda x: f(f(x)).sum())),
        lambda f: jax.jacfwd(jax.jacrev(f)),
    ],
)
def test_transformations(transformed):
    x = points(5)
    expected = transformed(plain)(x)
    for program in (transformed(call), jax.jit(transformed(call))):
        jax.tree.map(lambda a, b: assert_close(a, b, 1e-4), program(x), expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int32", "bool", "complex64"])
def test_dtypes_pass_unchanged(name):
    array = (
        Array[("n",), {"bool": Bool, "int32": Int32}.get(name)]
        if name in ("bool", "int32")
        else Array[("n",), None]
    )

    @component(framework="torch", device="cuda")
    def same(x: array) -> array:
        return x.clone()

    x = (points(9) > 1) if name == "bool" else points(9).astype(name)
    program = jax.jit(lambda x: apply_component(same, {"x": x}, infer_by_evaluation=True)["result"])
    found = program(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(x))


def test_wider_dtypes_are_cast_on_the_device():
    Wide = Differentiable[Array[("n",), Float64]]

    @component(framework="torch", device="cuda")
    def wide(x: Wide) -> Wide:
        assert x.dtype is torch.float64
        return x**2

    x = points(50)
    f = jax.jit(lambda x: apply_component(wide, {"x": x})["result"])
    with pytest.warns(UserWarning, match="declares 64 bits"):
        assert_close(f(x), x**2)
    assert_close(jax.jit(jax.grad(lambda x: f(x).sum()))(x), 2 * x)


def test_several_inputs_and_outputs_scalars_and_options():
    @component(framework="torch", device="cuda")
    def line(
        x: Vector, slope: Differentiable[Float32], name: str = "a", power: int = 2
    ) -> tuple[Vector, Differentiable[Float32]]:
        assert name == "b"
        return slope * x**power, (slope * x).sum()

    def f(x, slope):
        inputs = {"x": x, "slope": slope, "name": "b", "power": 3}
        found = apply_component(line, inputs)
        return found["result_0"], found["result_1"]

    x, slope = points(6), jnp.float32(1.5)
    value, total = jax.jit(f)(x, slope)
    assert_close(value, slope * x**3)
    assert_close(total, (slope * x).sum())
    gradient = jax.jit(jax.grad(lambda x, s: f(x, s)[0].sum() + 2 * f(x, s)[1], (0, 1)))(x, slope)
    assert_close(gradient[0], 3 * slope * x**2 + 2 * slope)
    assert_close(gradient[1], (x**3).sum() + 2 * x.sum())


def test_what_an_author_keeps_and_overwrites_is_his_own():
    kept = []

    @component(framework="torch", device="cuda")
    def keeping(x: Vector) -> Vector:
        kept.append((x, x[::2], x.clone()))
        y = x * 2
        x.mul_(0)
        x.add_(7)
        kept[-1] = (x, x[::2], x.clone())
        return y

    program = jax.jit(
        lambda x: (apply_component(keeping, {"x": x})["result"], x + 0, (x * x).sum())
    )
    x = points(10_000)
    held = np.asarray(x)
    for number in range(20):
        doubled, same, squares = program(x + number)
        assert_close(doubled, 2 * (held + number))
        assert_close(same, held + number)
        assert_close(squares, ((held + number).astype("float64") ** 2).sum(), 1e-3)
    np.testing.assert_array_equal(np.asarray(x), held)
    real = [each for each in kept if type(each[0]) is torch.Tensor]  # shapes are learnt from others
    assert len(real) == 20
    for whole, part, copy in real:
        np.testing.assert_array_equal(whole.cpu(), copy.cpu())
        np.testing.assert_array_equal(part.cpu(), copy.cpu()[::2])


def test_an_author_may_return_the_same_buffer_each_time():
    buffer = torch.zeros(1000, device="cuda")

    @component(framework="torch", device="cuda")
    def reusing(x: Vector) -> Vector:
        buffer.copy_(x * 2)
        return buffer

    program = jax.jit(lambda x: apply_component(reusing, {"x": x})["result"])

    def eager(x):
        return apply_component(reusing, {"x": x})["result"]

    x = points(1000)
    found = [f(x + number) for number in range(10) for f in (program, eager)]
    for position, each in enumerate(found):
        assert_close(each, 2 * (x + position // 2))


@pytest.mark.parametrize(
    "returned",
    [
        lambda y: y.cpu(),
        lambda y: torch.stack([y, y], 1)[:, 0],
        lambda y: y.clone().requires_grad_(),
        lambda y: y.flip(0).flip(0),
        lambda y: torch.nn.Parameter(y.clone()),
    ],
    ids=["on the host", "not contiguous", "requires a gradient", "flipped", "parameter"],
)
def test_odd_results_are_taken(returned):
    @component(framework="torch", device="cuda")
    def odd(x: Vector) -> Vector:
        return returned(2 * x)

    x = points(1000)
    assert_close(jax.jit(lambda x: apply_component(odd, {"x": x})["result"])(x), 2 * x)


def test_wrong_results_are_refused():
    @component(framework="torch", device="cuda")
    def wrong(x: Vector, how: str) -> Vector:
        if how == "dtype":
            return x.double()
        return torch.cat([x, x])

    with pytest.raises(Exception, match=r"Expected dtype float32, found f64\[10\]"):
        apply_component(wrong, {"x": points(10), "how": "dtype"})
    program = jax.jit(lambda x: x + 0)
    assert_close(program(points(3)), points(3))


def test_errors_of_the_author_leave_the_program_usable():
    @component(framework="torch", device="cuda")
    def fussy(x: Vector) -> Vector:
        if not torch.compiler.is_compiling() and type(x) is torch.Tensor and float(x[0]) > 1:
            raise ArithmeticError("no convergence")
        return 2 * x

    program = jax.jit(
        lambda x: apply_component(fussy, {"x": x}, infer_by_evaluation=True)["result"]
    )
    for _ in range(3):
        with pytest.raises(Exception, match="no convergence"), component_errors():
            jax.block_until_ready(program(points(10, 2.0)))
        assert_close(program(points(10, 0.5)), 2 * points(10, 0.5))


def test_out_of_device_memory_is_reported_and_survived():
    @component(framework="torch", device="cuda")
    def greedy(x: Vector, much: bool) -> Vector:
        if much:
            torch.empty(1 << 46, device="cuda")
        return 2 * x

    def f(x, much):
        return apply_component(greedy, {"x": x, "much": much}, infer_by_evaluation=True)["result"]

    with pytest.raises(Exception, match=r"(?i)out of memory"):
        f(points(10), True)
    assert_close(f(points(10), False), 2 * points(10))


def test_side_streams_of_the_author():
    side = torch.cuda.Stream()

    @component(framework="torch", device="cuda")
    def aside(x: Vector) -> Vector:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            y = torch.sin(2 * x) + 1
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        return y

    @component(framework="torch", device="cuda")
    def on_default(x: Vector) -> Vector:
        with torch.cuda.stream(torch.cuda.default_stream()):
            torch.cuda._sleep(2_000_000)
            return torch.sin(2 * x) + 1

    for each in (aside, on_default):
        program = jax.jit(
            lambda x, each=each: (
                apply_component(each, {"x": x @ jnp.eye(2000)}, infer_by_evaluation=True)["result"]
                * 3
            )
        )
        x = points(2000)
        for number in range(20):
            assert_close(program(x + number), 3 * plain(x + number), 1e-3)


def test_long_kernels_before_and_after_do_not_race():
    weights = jnp.eye(1500, dtype=jnp.float32)

    @jax.jit
    def program(x):
        for _ in range(3):
            x = weights @ x
        y = apply_component(wave, {"x": x})["result"]
        for _ in range(3):
            y = weights @ y
        return apply_component(wave, {"x": y})["result"]

    x = points(1500)
    running = [program(x + number / 100) for number in range(300)]
    for number, found in enumerate(running):
        assert_close(found, plain(plain(x + number / 100)), 1e-4)


def test_threads():
    program = jax.jit(jax.value_and_grad(lambda x: call(x).sum()))
    x = points(3000)
    wrong = []

    def work(seed):
        for number in range(30):
            shifted = x + seed + number / 10
            _, slope = program(shifted)
            if not np.allclose(slope, 2 * jnp.cos(2 * shifted), atol=1e-3):
                wrong.append((seed, number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arrays_of_the_host_are_moved_there_and_back():
    x = np.linspace(0, 3, 50, dtype="float32")
    found = wave.apply({"x": x})["result"]
    assert type(found) is np.ndarray
    assert_close(found, plain(x))
    products = wave.vector_jacobian_product(
        {"x": x}, ["x"], ["result"], {"result": np.ones_like(x)}
    )
    assert type(products["x"]) is np.ndarray
    assert_close(products["x"], 2 * np.cos(2 * x))
    with jax.default_device(jax.devices("cpu")[0]):
        on_cpu = jnp.asarray(x)
        assert_close(jax.jit(call)(on_cpu), plain(x))
    given = torch.as_tensor(x, device="cuda")
    stayed = wave.apply({"x": given})["result"]
    assert stayed.is_cuda
    assert stayed.data_ptr() != given.data_ptr()


def test_jacobians_by_elimination_and_plans():
    import chainrule

    def f(x):
        return jnp.tanh(call(jnp.sin(x)))

    x = points(6)
    for method in ("auto", "jacfwd", "jacrev"):
        assert_close(
            chainrule.jacobian(f, method=method)(x),
            jax.jacrev(lambda x: jnp.tanh(plain(jnp.sin(x))))(x),
            1e-4,
        )


def test_models_with_weights_train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    ).cuda()
    Batch = Differentiable[Array[(8, 4), Float32]]

    @component(framework="torch", device="cuda")
    def network(x: Batch) -> Differentiable[Array[(8, 1), Float32]]:
        return model(x)

    x = points(32).reshape(8, 4)

    def f(x):
        return apply_component(network, {"x": x})["result"].sum()

    slope = jax.jit(jax.grad(f))(x)
    given = torch.as_tensor(np.array(x), device="cuda").requires_grad_()
    model(given).sum().backward()
    assert_close(slope, given.grad.cpu(), 1e-4)


def test_memory_is_as_before_after_many_calls():
    program = jax.jit(jax.value_and_grad(lambda x: call(x).sum()))
    x = points(100_000)
    for _ in range(50):
        jax.block_until_ready(program(x))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(1000):
        out = program(x)
    jax.block_until_ready(out)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
