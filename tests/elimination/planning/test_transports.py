"""Plans over components in this process, in processes of their own, and served: counted where they run."""

from collections import Counter
from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.bridge.conftest import serving

from chainrule import Component, apply_component
from chainrule.elimination import jacobian, plan_jacobian
from chainrule.runtime import load_component

# y = A (x * gain), of any sizes. A line in the log for each request: `jvp 3` is a batch of three.
SOURCE = """
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64, WithResiduals

MATRIX = np.random.default_rng({seed}).normal(size=({m}, {n}))


class InputSchema(BaseModel):
    x: Differentiable[Array[({n},), Float64]]
    gain: Differentiable[Array[(), Float64]]
    fixed: Array[({n},), Float64]


class OutputSchema(BaseModel):
    y: Differentiable[Array[({m},), Float64]]
    norm: Array[(), Float64]


def note(text):
    with open({log!r}, "a") as log:
        print("{name}", text, file=log)


def apply(inputs):
    note("apply")
    scaled = inputs.x * inputs.gain
    outputs = {{"y": MATRIX @ scaled + inputs.fixed.sum(), "norm": np.linalg.norm(scaled)}}
    return WithResiduals(outputs, {{"gain": inputs.gain}})


def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector{batched}):
    note("jvp" + size(tangent_vector))
    moved = 0.0
    if "x" in tangent_vector:
        moved = moved + tangent_vector["x"] * inputs.gain
    if "gain" in tangent_vector:
        moved = moved + np.asarray(tangent_vector["gain"])[..., None] * inputs.x
    return {{"y": moved @ MATRIX.T}}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector, residuals{batched}):
    note("vjp" + size(cotangent_vector))
    back = cotangent_vector["y"] @ MATRIX
    found = {{"x": back * residuals["gain"], "gain": back @ inputs.x}}
    return {{name: found[name] for name in vjp_inputs}}


def size(vectors):
    (first, *_) = ((name, np.asarray(v)) for name, v in vectors.items())
    return f" {{first[1].shape[0]}}" if first[1].ndim > (first[0] != "gain") else " 1"
"""


@pytest.fixture
def place(request):
    return request.param


@pytest.fixture
def components(tmp_path, place):
    """Three components, 5-4, 4-2, 2-4, and what they are asked. The second takes batches, and is there."""
    log = tmp_path / "log"

    def write(name, n, m, batched):
        path = tmp_path / f"{name}.py"
        options = ", batched=False" if batched else ""
        path.write_text(SOURCE.format(name=name, n=n, m=m, seed=n, log=str(log), batched=options))
        return path

    files = [write("a", 5, 4, False), write("b", 4, 2, True), write("c", 2, 4, False)]
    with ExitStack() as stack:
        handles = [load_component(file) for file in files]
        if place == "own process":
            handles[1] = stack.enter_context(Component.from_source(files[1]))
        elif place == "served":
            url = stack.enter_context(serving(files[1]))
            handles[1] = stack.enter_context(Component.from_url(url))

        def asked():
            lines = log.read_text().splitlines() if log.exists() else []
            log.unlink(missing_ok=True)
            return Counter(lines)

        yield handles, asked


def pipeline(components):
    a, b, c = components

    def call(component, x, gain, fixed):
        return apply_component(component, {"x": x, "gain": gain, "fixed": fixed})

    def f(x, gain):
        first = call(a, jnp.sin(x), gain, jnp.ones(5))["y"]
        second = call(b, first, 2.0, jnp.ones(4))
        third = call(c, second["y"], 0.5, jnp.ones(2))
        return third["y"] * 3, second["norm"]

    return f


@pytest.mark.parametrize("place", ["in process", "own process", "served"], indirect=True)
def test_products_are_those_of_the_plan(components):
    handles, asked = components
    f = pipeline(handles)
    args = jnp.linspace(0.1, 0.5, 5), jnp.asarray(1.5)
    options = {"argnums": (0, 1), "has_aux": True}
    expected, norm = jax.jacrev(f, **options)(*args)
    # Two rows through b and a, two columns through c; those of b in one message.
    products = {"a vjp 1": 2, "b vjp 2": 1, "c jvp 1": 2}
    applied = {"a apply": 1, "b apply": 1, "c apply": 1}
    asked()
    found, aux = jacobian(f, **options)(*args)
    assert asked() == products | applied
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)
    np.testing.assert_allclose(aux, norm)
    compiled = jax.jit(jacobian(f, **options))
    jax.tree.map(np.testing.assert_allclose, compiled(*args)[0], found)
    del applied["c apply"]  # its value is not read
    assert asked() == products | applied
    plan = plan_jacobian(lambda *args: f(*args)[0], argnums=(0, 1))(*args)
    assert (plan.products, plan.messages) == (6, 5)
    assert not asked()


@pytest.mark.parametrize("place", ["in process"], indirect=True)
def test_vectors_of_each_point_of_a_batch_are_sent_together(components):
    handles, asked = components
    f = pipeline(handles)
    xs = jnp.stack([jnp.linspace(0.1, 0.5, 5) * k for k in (1, 2, 3)])
    expected = jax.vmap(jax.jacrev(f, has_aux=True), (0, None))(xs, 1.5)[0]
    mapped = jax.vmap(jacobian(f, has_aux=True), (0, None))
    for batched in (mapped, jax.jit(mapped)):
        asked()
        found, _ = batched(xs, 1.5)
        lines = asked()
        assert {line: n for line, n in lines.items() if "apply" not in line} == {
            "a vjp 1": 6,
            "b vjp 2": 3,
            "c jvp 1": 6,
        }
        np.testing.assert_allclose(found, expected, rtol=1e-12)
