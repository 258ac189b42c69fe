"""`locate_nonfinite` names the operation, the line, the pass, the iteration and the tagged value."""

import jax
import jax.numpy as jnp
import pytest

from chainrule.harvest import NonFinite, locate_nonfinite, sow


def line_of(function, offset):
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def test_nothing_to_report():
    assert locate_nonfinite(jnp.sin)(1.0) is None
    assert locate_nonfinite(lambda x, n: x * n)(1.0, 3) is None


def forward(x):
    y = x - 1.0
    h = sow(jnp.log(y), "h")
    return jnp.sum(h * 2)


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
def test_forward(wrap):
    report = locate_nonfinite(wrap(forward))(jnp.array([2.0, 0.5]))
    assert (report.kind, report.primitive, report.phase) == ("nan", "log", "forward")
    assert str(report.where).startswith(line_of(forward, 2))
    assert (report.name, report.mode) == ("h", "primal")
    assert "'log' made nan" in str(report)


def backward(x):
    root = jnp.sqrt(sow(x * 1.0, "inside"))
    return jnp.sum(root)


def test_backward():
    assert locate_nonfinite(backward)(jnp.array([1.0, 0.0])) is None
    report = locate_nonfinite(jax.grad(backward))(jnp.array([1.0, 0.0]))
    assert report.kind == "inf"
    assert str(report.where).startswith(line_of(backward, 1))
    assert (report.name, report.mode) == ("inside", "cotangent")


def transposed(x):
    scale = jnp.float32(1e30)
    return jnp.sum(x * scale) * scale


def test_an_overflow_of_the_backward_pass():
    report = locate_nonfinite(jax.grad(transposed))(jnp.zeros(2))
    assert (report.kind, report.phase) == ("inf", "backward")


def test_a_swallowed_infinity_is_not_blamed():
    def attention(x):
        masked = jnp.where(jnp.arange(3) < 2, x, -jnp.inf)
        weights = jax.nn.softmax(masked)
        return jnp.sum(weights) / (x[0] - x[1])

    report = locate_nonfinite(attention)(jnp.ones(3))
    assert report.primitive == "div"
    assert str(report.where).startswith(line_of(attention, 3))


def test_iterations_of_loops():
    def scanned(x):
        def body(c, t):
            c = jnp.log(c)
            return c - t, c

        return jax.lax.scan(body, x, jnp.arange(5.0))[0]

    # 3 → log 3 - 0 = 1.10 → log 1.10 - 1 = -0.91 → log of a negative number.
    report = locate_nonfinite(jax.jit(scanned))(3.0)
    assert (report.primitive, report.iterations) == ("log", (2,))

    def looped(x):
        return jax.lax.while_loop(lambda c: c < 5, lambda c: c + jnp.log(c - 2), x)

    report = locate_nonfinite(looped)(2.5)
    assert (report.primitive, report.iterations) == ("log", (1,))


def test_branches_and_bad_arguments():
    def f(x):
        return jax.lax.cond(x > 0, lambda x: 1 / (x - x), lambda x: x, x)

    assert locate_nonfinite(f)(1.0).primitive == "div"
    assert locate_nonfinite(f)(-1.0) is None
    report = locate_nonfinite(jax.jit(f))(float("nan"))
    assert report == NonFinite("nan")
    assert str(report) == "an argument or a constant holds nan"
    constant = jnp.array([1.0, jnp.inf])
    assert locate_nonfinite(lambda x: x + constant)(1.0) == NonFinite("inf")
    assert locate_nonfinite(lambda x: jnp.inf)(1.0) == NonFinite("inf")


def test_a_batch_of_loops_is_blamed_as_a_whole():
    def looped(x):
        return jax.lax.while_loop(lambda c: c < 5, lambda c: c + jnp.log(c - 2), x)

    report = locate_nonfinite(jax.vmap(looped))(jnp.array([2.5, 7.0]))
    assert (report.kind, report.primitive) == ("nan", "while")
    assert str(report.where).startswith(line_of(looped, 1))
