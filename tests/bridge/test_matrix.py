"""Transformations × component kinds: every cell equals the same function in plain JAX, or says why not."""

from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

from bridge import matrix
from bridge.components import numpy_component
from chainrule import apply_component, from_callable
from chainrule.client import Component
from chainrule.errors import CapabilityError
from chainrule.runtime import load_component

HERE = Path(__file__).parent


@cache
def component(name):
    return load_component(HERE / "components" / f"{name}.py")


def _blocks(primals):
    return numpy_component._blocks(*primals)


def _callable_jvp(primals, tangents):
    blocks, (v, b) = _blocks(primals), tangents
    return {
        "y": blocks["y", "x"] @ v + blocks["y", "a"] * b,
        "s": blocks["s", "x"] @ v + blocks["s", "a"] * b,
    }


def _callable_vjp(primals, cotangents):
    blocks, y, s = _blocks(primals), cotangents["y"], cotangents["s"]
    return y @ blocks["y", "x"] + s * blocks["s", "x"], y @ blocks["y", "a"] + s * blocks["s", "a"]


def _numpy_function(x, a):
    return {"y": a * np.sin(x) + x.sum() * x, "s": a * (x * x).sum()}


def _from_callable(**products):
    return from_callable(_numpy_function, abstract=lambda x, a: {"y": x, "s": a}, **products)


def _from_component(component, **options):
    return lambda x, a: apply_component(component, {"x": x, "a": a}, **options)


KINDS = {
    "jax inlined": lambda _: _from_component(component("jax_component")),
    "numpy": lambda _: _from_component(component("numpy_component")),
    "served": lambda request: _from_component(request.getfixturevalue("served_component")),
}
CALLABLES = {
    "callable with jvp": lambda: _from_callable(jvp=_callable_jvp),
    "callable with vjp": lambda: _from_callable(vjp=_callable_vjp),
}


@pytest.fixture(scope="session")
def served_component(served_url):
    with Component.from_url(served_url, timeout=60) as component:
        yield component


@cache
def expected(name):
    rows = matrix.FIRST_ORDER | matrix.SECOND_ORDER
    return rows[name](matrix.reference)


def check(found, name):
    wanted = expected(name)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        tolerance = 1e-5 if left.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", matrix.FIRST_ORDER)
def test_first_order(name, kind, request):
    check(matrix.FIRST_ORDER[name](KINDS[kind](request)), name)


@pytest.mark.parametrize("kind", CALLABLES)
@pytest.mark.parametrize(
    "name",
    ["python_scalar_argument", "jit_of_grad", "jvp", "vjp", "linear_transpose", "jacfwd", "jacrev",
     "vmap_of_vmap", "vmap_of_grad", "grad_of_vmap", "grad_of_scan", "jvp_of_while_loop", "switch",
     "checkpoint"],
)  # fmt: skip
def test_callables(name, kind):
    check(matrix.FIRST_ORDER[name](CALLABLES[kind]()), name)


@pytest.mark.parametrize(
    "name", ["eager", "grad", "jvp", "vjp", "linearize", "jacfwd", "vmap", "grad_of_vmap"]
)
def test_a_jax_component_on_the_host_outside_of_jit(name):
    check(matrix.FIRST_ORDER[name](_from_component(component("jax_component"), inline=False)), name)


@pytest.mark.parametrize("name", ["jit", "jit_of_grad", "jit_of_vmap_of_jacfwd", "scan", "cond"])
def test_a_jax_component_is_never_run_inside_a_host_call(name):
    """It deadlocks there, so its endpoints are traced; see `docs/how-to/compose-in-jax.md`."""
    f = _from_component(component("jax_component"), inline=False)
    check(matrix.FIRST_ORDER[name](f), name)
    x, a = np.ones(3), np.ones(())
    assert "custom_call" not in jax.jit(jax.grad(lambda x: f(x, a)["s"])).lower(x).as_text()


@pytest.mark.parametrize("name", matrix.SECOND_ORDER)
def test_second_order_of_inlined(name):
    check(matrix.SECOND_ORDER[name](KINDS["jax inlined"](None)), name)


@pytest.mark.parametrize("name", matrix.SECOND_ORDER)
def test_second_order_of_others_says_what_is_missing(name):
    with pytest.raises(CapabilityError, match="hessian_vector_product") as caught:
        matrix.SECOND_ORDER[name](KINDS["numpy"](None))
    assert caught.value.code == "no_second_derivative"
