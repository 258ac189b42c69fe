"""The author's exception reaches the caller: as it is outside of `jit`, and through it as a text."""

import gc
import sys
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import Field

from chainrule import ComponentError, apply_component, component_errors, from_callable
from chainrule.errors import CapabilityError, ChainruleError, DefinitionError, InputError
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


TRANSFORMS = {
    "jit": jax.jit,
    "vmap": lambda f: jax.jit(jax.vmap(f)),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0]),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_text_out_of_jit_says_everything(transform):
    program = TRANSFORMS[transform](fails)
    for _ in range(2):  # the second call is JAX's fast path
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:
            jax.block_until_ready(program(X[None]))
        text = str(caught.value)
        assert "apply of failing" in text  # the component
        assert "raised AuthorsError: the solver diverged" in text
        assert "[component_failed]" in text
        assert 'raise AuthorsError("the solver diverged")' in text  # the author's line
        assert "chainrule.component_errors()" in text
        assert "src/chainrule" not in text  # no line of ours


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_exception_itself_out_of_jit(transform):
    program = TRANSFORMS[transform](fails)
    for _ in range(3):
        with pytest.raises(AuthorsError) as caught, component_errors():
            jax.block_until_ready(program(X[None]))
        error = caught.value
        assert type(error) is AuthorsError
        assert str(error) == "the solver diverged"
        assert (error.__cause__, error.__context__) == (None, None)
        assert traceback.extract_tb(error.__traceback__)[-1].name == "failing"
        assert any("Raised in apply of failing" in note for note in error.__notes__)


def test_where_the_result_is_read():
    @jax.jit
    def late(x):
        return fails(x) + 1

    with pytest.raises(AuthorsError), component_errors():
        float(late(X)[0])
    with pytest.raises(AuthorsError), component_errors():
        np.asarray(late(X))


def too_large(x):
    if x[0] > 1:
        raise AuthorsError("too large")
    return x


def test_the_fast_path():
    """After a success JAX runs small programs at once, and raises their errors as plain `ValueError`s."""
    program = jax.jit(from_callable(too_large, abstract=lambda x: x))
    for _ in range(3):
        program(X)
        with pytest.raises(AuthorsError, match="too large") as caught, component_errors():
            jax.block_until_ready(program(X + 1))
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "too_large"
    with ThreadPoolExecutor(1) as pool, pytest.raises(AuthorsError), component_errors():
        pool.submit(lambda: jax.block_until_ready(program(X + 1))).result()


def test_as_a_decorator():
    @component_errors()
    def run(x):
        """Runs."""
        return jax.block_until_ready(jax.jit(fails)(x))

    for _ in range(2):
        with pytest.raises(AuthorsError):
            run(X)
    assert run.__doc__ == "Runs."


def test_many_threads_get_each_its_own_exception():
    def fail(x):
        raise AuthorsError(int(x[0]))

    program = jax.jit(from_callable(fail, abstract=lambda x: x))

    def run(number):
        try:
            with component_errors():
                jax.block_until_ready(program(np.full(3, float(number))))
        except AuthorsError as error:
            return error.args[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(40))) == list(range(40))


def test_nested_contexts_and_nested_components():
    """The author runs a compiled program in which another component fails, and may quote its error."""
    # A host call would have to run the program elsewhere; here it has failed before.
    inner = _raised(compiled(fails), X)
    assert isinstance(inner, jax.errors.JaxRuntimeError)

    def outer(x):
        raise inner

    def quoting(x):
        try:
            outer(x)
        except Exception as error:
            raise ValueError(f"the inner one said: {error}") from error

    with pytest.raises(AuthorsError), component_errors(), component_errors():
        outer(X)
    with (
        pytest.raises(ValueError, match="the inner one said"),
        component_errors(),
        component_errors(),
    ):
        compiled(from_callable(quoting, abstract=lambda x: x))(X)
    with pytest.raises(AuthorsError), component_errors():
        compiled(from_callable(outer, abstract=lambda x: x))(X)


def compiled(function):
    program = jax.jit(function)
    return lambda x: jax.block_until_ready(program(x))


def _raised(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error


def test_authors_keep_their_causes_and_contexts():
    class PickyError(OSError):
        def __init__(self, *, code):
            super().__init__(5, "no device")
            self.code = code

    def caused(x):
        try:
            raise KeyError("first")
        except KeyError as error:
            raise PickyError(code=7) from error

    def in_context(x):
        try:
            raise KeyError("first")
        except KeyError:
            raise PickyError(code=7)  # noqa: B904

    for function in (caused, in_context):
        program = jax.jit(from_callable(function, abstract=lambda x: x))
        for _ in range(2):
            with pytest.raises(PickyError) as caught, component_errors():
                jax.block_until_ready(program(X))
            assert (caught.value.code, caught.value.errno) == (7, 5)
            assert isinstance(caught.value.__context__, KeyError)
            assert (caught.value.__cause__ is not None) == (function is caused)


@pytest.mark.parametrize("error", [AuthorsError("x"), ValueError("x"), KeyboardInterrupt()])
def test_other_exceptions_pass(error):
    with pytest.raises(type(error)) as caught, component_errors():
        raise error
    assert caught.value is error


def test_an_old_failure_stays_a_text():
    program = compiled(fails)
    errors = [_raised(program, X) for _ in range(65)]
    for number, error in enumerate(errors):
        expected = jax.errors.JaxRuntimeError if number == 0 else AuthorsError
        with pytest.raises(expected), component_errors():
            raise error


@pytest.mark.parametrize("size", [3, 10_000], ids=["small", "large"])
def test_a_failure_that_is_kept_keeps_no_arrays(size):
    """Also not in the frames of its cause: they may hold memory that XLA uses again."""
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
        with pytest.raises(AuthorsError), component_errors():
            jax.block_until_ready(program(np.ones(size)))
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


def test_tools_that_trace_are_left_alone():
    program = jax.jit(from_callable(too_large, abstract=lambda x: x))
    program(X)
    events = []

    def tool(frame, event, what):
        if event == "call" and frame.f_code.co_name == "run":
            return lambda *event: events.append(event[1])
        return None

    def run():
        jax.block_until_ready(program(X + 1))

    before = sys.gettrace()
    sys.settrace(tool)
    try:
        with pytest.raises(AuthorsError), component_errors():
            run()
        assert sys.gettrace() is tool
    finally:
        sys.settrace(before)
    assert "exception" in events


def test_classes_of_jax_are_as_jax_made_them():
    assert "__new__" not in vars(jax.errors.JaxRuntimeError)
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="the solver") as caught,
        component_errors(),
    ):
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(failing, x, x))(X))
    assert type(caught.value) is jax.errors.JaxRuntimeError


def test_a_components_error_keeps_its_cause():
    def f(x):
        return apply_component(diverges, {"x": x})["result"]

    with pytest.raises(
        Exception, match=r"apply of diverges raised ComponentError.*component_failed"
    ):
        jax.block_until_ready(jax.jit(f)(X))
    with pytest.raises(ComponentError) as caught, component_errors():
        jax.block_until_ready(jax.jit(f)(X))
    assert caught.value.code == "component_failed"
    assert isinstance(caught.value.__cause__, AuthorsError)


def test_wrong_results_are_named():
    wrong = from_callable(lambda x: x[:2], abstract=lambda x: x)
    with pytest.raises(ComponentError, match=r"f64\[2\].*f64\[3\]") as caught, component_errors():
        jax.block_until_ready(jax.jit(wrong)(X))
    assert caught.value.code == "result_mismatch"
    kind = from_callable(lambda x: x * 1j, abstract=lambda x: x)
    with pytest.raises(ComponentError, match=r"c128\[3\].*f64\[3\]"), component_errors():
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
    with pytest.raises(DefinitionError, match=r"@chainrule\.component.*from_callable"):
        apply_component(np.sin, {"x": X})
    with pytest.raises(DefinitionError, match=r"found a str\. Load a file by .*load_component"):
        apply_component("solver.py", {"x": X})
    with pytest.raises(DefinitionError, match=r"found an int\. A component has `apply`"):
        apply_component(3, {"x": X})


def test_keyboard_interrupt_does_not_become_a_number():
    def interrupt(x):
        raise KeyboardInterrupt

    f = from_callable(interrupt, abstract=lambda x: x)
    with pytest.raises(Exception, match="KeyboardInterrupt"):
        jax.block_until_ready(jax.jit(f)(X))
    with pytest.raises(KeyboardInterrupt), component_errors():
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


def test_a_component_without_shapes_says_what_to_write():
    class Shapeless:
        name = "solver"
        available_endpoints = ("apply",)
        openapi_schema = {  # noqa: RUF012
            "components": {"schemas": {"ApplyInputSchema": {}, "ApplyOutputSchema": {}}}
        }

        def apply(self, inputs):
            return {"y": inputs["x"]}

    with pytest.raises(CapabilityError) as caught:
        jax.jit(lambda x: apply_component(Shapeless(), {"x": x}))(X)
    assert caught.value.code == "no_abstract_eval"
    for part in (
        "solver has no `abstract_eval`",
        "`x` f64[3]",
        'y: Array[("n",), Float64]',
        "def abstract_eval(abstract_inputs):",
    ):
        assert part in str(caught.value)


def test_errors_are_ours():
    f = from_callable(lambda x: x)
    with pytest.raises(ChainruleError, match="abstract") as caught:
        jax.jit(f)(X)
    assert caught.value.code == "no_abstract_eval"
    np.testing.assert_array_equal(f(X), X)


def test_the_text_out_of_jit_has_no_data_of_a_refusal():
    @component(derivatives="finite")
    def cube(x: Annotated[Differentiable[Float64], Field(lt=3.0)]) -> Differentiable[Float64]:
        return x**3

    program = jax.jit(lambda x: apply_component(cube, {"x": x})["result"])
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:
        jax.block_until_ready(program(5.25))
    text = str(caught.value)
    assert "at 'x': Input should be less than 3" in text
    assert "5.25" not in text
    assert "pydantic" not in text
