"""The author's exception reaches the caller with its type, outside of `jit` and through it."""

import gc
import sys
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import ComponentError, apply_component, from_callable
from chainrule._errors import ChainruleError, DefinitionError, InputError
from chainrule.runtime import Array, Differentiable, Float64, component

X = np.ones(3)


class AuthorsError(Exception):
    pass


def failing(x):
    raise AuthorsError("the solver diverged")


fails = from_callable(failing, abstract=lambda x: x)


@component
def diverges(x: Differentiable[Array[("n",), Float64]]) -> Differentiable[Array[("n",), Float64]]:
    raise AuthorsError("the solver diverged")


def test_eager_errors_are_raised_as_they_are():
    with pytest.raises(AuthorsError, match="diverged"):
        fails(X)
    with pytest.raises(AuthorsError, match="diverged"):
        jax.vmap(fails)(X[None])


@pytest.mark.parametrize("transform", [jax.jit, lambda f: jax.jit(jax.vmap(f)),
    lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0])])  # fmt: skip
def test_type_message_and_traceback_through_jit(transform):
    program = transform(fails)
    for _ in range(2):  # the second call is JAX's fast path
        with pytest.raises(AuthorsError) as caught:
            jax.block_until_ready(program(X[None]))
        error = caught.value
        assert str(error) == "the solver diverged"
        assert isinstance(error, jax.errors.JaxRuntimeError)
        assert type(error.__cause__) is AuthorsError
        assert traceback.extract_tb(error.__cause__.__traceback__)[-1].name == "failing"
        text = "".join(traceback.format_exception(error))
        assert "raise AuthorsError(" in text
        assert "Raised in HostCall(" in text


def test_the_type_survives_where_the_result_is_read():
    @jax.jit
    def late(x):
        return fails(x) + 1

    with pytest.raises(AuthorsError):
        float(late(X)[0])
    with pytest.raises(AuthorsError):
        np.asarray(late(X))


def too_large(x):
    if x[0] > 1:
        raise AuthorsError("too large")
    return x


def test_the_type_survives_the_fast_path():
    """After a success JAX runs small programs at once, and raises their errors as plain `ValueError`s."""
    program = jax.jit(from_callable(too_large, abstract=lambda x: x))
    for _ in range(3):
        program(X)
        with pytest.raises(AuthorsError, match="too large") as caught:
            program(X + 1)
        assert sys.gettrace() is None
    assert isinstance(caught.value, jax.errors.JaxRuntimeError)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "test_the_type_survives_the_fast_path" in frames
    with pytest.raises(AuthorsError):
        list(map(program, [X, X + 1]))
    with ThreadPoolExecutor(1) as pool, pytest.raises(AuthorsError):
        pool.submit(program, X + 1).result()


@pytest.mark.parametrize("size", [3, 10_000], ids=["small", "large"])
def test_a_failure_that_is_kept_keeps_no_arrays(size):
    """Also not in the frames of its cause: XLA reuses the memory of what it has lent."""
    seen = []

    def solve(x):
        seen.append(weakref.ref(x))
        raise ArithmeticError("no convergence")

    def f(x):
        try:
            return solve(x)
        except ArithmeticError as error:
            raise AuthorsError("the solver diverged") from error

    program = jax.jit(from_callable(f, abstract=lambda x: x))
    for _ in range(2):
        with pytest.raises(AuthorsError):
            jax.block_until_ready(program(np.ones(size)))
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


def test_a_tool_that_traces_is_left_alone():
    program = jax.jit(from_callable(too_large, abstract=lambda x: x))
    program(X)

    def tool(frame, event, what):
        return None

    sys.settrace(tool)
    try:
        with pytest.raises(Exception, match="AuthorsError: too large"):
            program(X + 1)
        assert sys.gettrace() is tool
    finally:
        sys.settrace(None)


def test_other_errors_of_jax_are_untouched():
    with pytest.raises(jax.errors.JaxRuntimeError, match="the solver") as caught:
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(failing, x, x))(X))
    assert type(caught.value) is jax.errors.JaxRuntimeError
    assert caught.value.__cause__ is None


def test_a_components_error_keeps_its_cause():
    def f(x):
        return apply_component(diverges, {"x": x})["result"]

    with pytest.raises(ComponentError) as caught:
        jax.block_until_ready(jax.jit(f)(X))
    assert type(caught.value.__cause__) is ComponentError
    assert isinstance(caught.value.__cause__.__cause__, AuthorsError)
    assert caught.value.code == caught.value.__cause__.code


def test_wrong_results_are_named():
    wrong = from_callable(lambda x: x[:2], abstract=lambda x: x)
    with pytest.raises(ComponentError, match=r"f64\[2\].*f64\[3\]") as caught:
        jax.block_until_ready(jax.jit(wrong)(X))
    assert caught.value.code == "result_mismatch"
    kind = from_callable(lambda x: x * 1j, abstract=lambda x: x)
    with pytest.raises(ComponentError, match=r"c128\[3\].*f64\[3\]"):
        jax.block_until_ready(jax.jit(kind)(X))


def test_a_missing_derivative_is_told_to_be_zeros():
    f = from_callable(
        lambda x, y: x * y, vjp=lambda p, u: (p[1] * u, None), abstract=lambda x, y: x
    )
    np.testing.assert_array_equal(jax.grad(lambda x: f(x, 2 * X).sum())(X), 2 * X)
    with pytest.raises(ComponentError, match=r"returned a NoneType at `\[1\]`.*Return zeros"):
        jax.grad(lambda y: f(X, y).sum())(X)


def test_vjp_must_return_a_tuple():
    f = from_callable(np.sin, vjp=lambda p, u: np.cos(p[0]) * u, abstract=lambda x: x)
    with pytest.raises(ComponentError, match="one cotangent per argument"):
        jax.grad(lambda x: f(x).sum())(X)


def test_wrong_inputs_are_found_when_tracing():
    def f(x):
        return apply_component(diverges, {"x": x})["result"]

    with pytest.raises(InputError):
        jax.make_jaxpr(f)(np.ones((2, 2)))


def test_not_a_component():
    with pytest.raises(DefinitionError, match="from_callable"):
        apply_component(np.sin, {"x": X})


def test_keyboard_interrupt_does_not_become_a_number():
    def interrupt(x):
        raise KeyboardInterrupt

    f = from_callable(interrupt, abstract=lambda x: x)
    with pytest.raises(KeyboardInterrupt):
        jax.block_until_ready(jax.jit(f)(X))


def test_nans_are_reported_with_their_component():
    f = from_callable(lambda x: x * x.dtype.type("nan"), abstract=lambda x: x, name="broken solver")
    with jax.debug_nans(True):
        for dtype in (float, "float16", "bfloat16"):
            with pytest.raises(FloatingPointError, match="broken solver returned NaN"):
                f(jnp.asarray(X, dtype))
        with pytest.raises(FloatingPointError):
            jax.jit(f)(X)
    from jax.experimental import checkify

    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(X)
    assert "nan" in error.get()


def test_errors_are_ours():
    f = from_callable(lambda x: x)
    with pytest.raises(ChainruleError, match="abstract") as caught:
        jax.jit(f)(X)
    assert caught.value.code == "no_abstract_eval"
    np.testing.assert_array_equal(f(X), X)
