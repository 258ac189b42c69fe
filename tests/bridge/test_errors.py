"""The author's exception reaches the caller: eagerly as it is, through `jit` in full."""

import jax
import numpy as np
import pytest

from chainrule import ComponentError, apply_component, from_callable
from chainrule._errors import ChainruleError, DefinitionError, InputError
from chainrule.bridge import component_errors, original_error
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


def test_the_text_through_jit_says_type_message_and_line():
    with pytest.raises(Exception, match="AuthorsError: the solver diverged") as caught:
        jax.block_until_ready(jax.jit(fails)(X))
    assert "in failing" in str(caught.value)
    assert "component_errors" in str(caught.value)
    assert isinstance(original_error(caught.value), AuthorsError)


def test_jax_itself_carries_nothing_but_text():
    """The reason for `component_errors`. Should a JAX fail this test, exceptions can travel by themselves."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="AuthorsError: the solver") as caught:
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(failing, x, x))(X))
    assert not isinstance(caught.value, AuthorsError)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("transform", [jax.jit, lambda f: jax.jit(jax.vmap(f)),
    lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0])])  # fmt: skip
def test_component_errors_raises_the_exception_itself(transform):
    with pytest.raises(AuthorsError, match="diverged") as caught, component_errors():
        jax.block_until_ready(transform(fails)(X[None]))
    frames = [entry.name for entry in caught.traceback]
    assert frames[-1] == "failing"


def test_component_errors_lets_others_pass():
    with pytest.raises(KeyError, match="other"), component_errors():
        raise KeyError("other")


def test_component_errors_as_decorator():
    @component_errors()
    def run():
        return jax.block_until_ready(jax.jit(fails)(X))

    with pytest.raises(AuthorsError):
        run()


def test_a_components_error_keeps_its_cause():
    def f(x):
        return apply_component(diverges, {"x": x})["result"]

    with pytest.raises(ComponentError) as caught, component_errors():
        jax.block_until_ready(jax.jit(f)(X))
    assert isinstance(caught.value.__cause__, AuthorsError)


def test_wrong_results_are_named():
    wrong = from_callable(lambda x: x[:2], abstract=lambda x: x)
    with pytest.raises(ComponentError, match=r"f64\[2\].*f64\[3\]") as caught, component_errors():
        jax.block_until_ready(jax.jit(wrong)(X))
    assert caught.value.code == "result_mismatch"
    kind = from_callable(lambda x: x * 1j, abstract=lambda x: x)
    with pytest.raises(ComponentError, match=r"c128\[3\].*f64\[3\]"), component_errors():
        jax.block_until_ready(jax.jit(kind)(X))


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
    with pytest.raises(KeyboardInterrupt), component_errors():
        jax.block_until_ready(jax.jit(f)(X))


def test_nans_are_reported_with_their_component():
    f = from_callable(lambda x: x * np.nan, abstract=lambda x: x, name="broken solver")
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError, match="broken solver"):
            f(X)
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
