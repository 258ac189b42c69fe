"""Sites whose Jacobian is sparse: few products, the same Jacobian, and its structure is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from tests.bridge.conftest import serving

import chainrule
from chainrule import Component, apply_component, from_callable
from chainrule.elimination import jacobian, plan_jacobian
from chainrule.runtime import Array, Differentiable, Float64


@pytest.fixture
def asked():
    return []


def neighbours(x, np=np):
    """y[i] = sin(x[i]) + x[i] x[i+1] + x[i-1]: three diagonals."""
    zero = np.zeros(1)
    return np.sin(x) + x * np.concatenate([x[1:], zero]) + np.concatenate([zero, x[:-1]])


def matrix_of(x):
    n = len(x)
    diagonal = np.cos(x) + np.append(x[1:], 0.0)
    return np.diag(diagonal) + np.diag(x[:-1], 1) + np.diag(np.ones(n - 1), -1)


def stencil(asked, name, **options):
    def jvp(primals, tangents):
        asked.append(f"{name} jvp")
        return matrix_of(primals[0]) @ tangents[0]

    def vjp(primals, cotangent):
        asked.append(f"{name} vjp")
        return (matrix_of(primals[0]).T @ cotangent,)

    return from_callable(neighbours, jvp=jvp, vjp=vjp, abstract=lambda x: x, name=name, **options)


BAND = {"lower": 1, "upper": 1}
X = np.linspace(0.1, 1.0, 12)


@pytest.mark.parametrize(
    "sparsity",
    [BAND, matrix_of(X) != 0, sparse.csr_matrix(matrix_of(X)), {"": {"[0]": BAND}}],
    ids=["band", "array", "scipy", "by path"],
)
def test_declared_patterns(asked, sparsity):
    a = stencil(asked, "a", sparsity=sparsity)
    plan = plan_jacobian(a)(X)
    (request,) = plan.requests
    assert (request.products, request.asked) == (3, "3 JVPs, coloured")
    np.testing.assert_allclose(jacobian(a)(X), matrix_of(X))
    assert asked == ["a jvp"] * 3


def test_two_stencils(asked):
    """Six products where 24 are needed otherwise; the result has five diagonals."""
    a, b = stencil(asked, "a", sparsity=BAND), stencil(asked, "b", sparsity=BAND)

    def f(x):
        return jnp.tanh(b(a(x) ** 2)) + x

    def pure(x):
        return jnp.tanh(neighbours(neighbours(x, jnp) ** 2, jnp)) + x

    expected = jax.jacfwd(pure)(X)
    plan = plan_jacobian(f)(X)
    assert (plan.products, plan.alternatives["jacfwd"][0]) == (6, 24)
    np.testing.assert_allclose(jacobian(f)(X), expected, rtol=1e-9, atol=1e-14)
    assert len(asked) == 6
    found = jacobian(f, sparse=True)(X)
    np.testing.assert_allclose(found.todense(), expected, rtol=1e-9, atol=1e-14)
    assert found.nse == 12 + 2 * 11 + 2 * 10
    np.testing.assert_allclose(jax.jit(jacobian(f))(X), expected, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(jax.vmap(jacobian(f))(X[None])[0], expected, rtol=1e-9, atol=1e-14)
    with_workers = plan_jacobian(f, workers=2, objective="time")(X)
    np.testing.assert_allclose(with_workers.execute(X)[1], expected, rtol=1e-9, atol=1e-14)


def test_rows_where_there_is_no_jvp(asked):
    """An arrow: the first row is full, so all columns meet in it. Two VJPs give all of it."""
    n = 6
    matrix = np.eye(n) * 2.0
    matrix[0] = np.arange(1.0, n + 1)

    def vjp(primals, cotangent):
        asked.append("vjp")
        return (matrix.T @ cotangent,)

    arrow = from_callable(
        lambda x: matrix @ x, vjp=vjp, jvp=lambda p, t: matrix @ t[0], abstract=lambda x: x,
        name="arrow", sparsity=matrix != 0,
    )  # fmt: skip
    plan = plan_jacobian(arrow)(np.ones(n))
    assert [(r.way, r.products) for r in plan.requests] == [("coloured rows", 2)]
    np.testing.assert_allclose(plan.execute(np.ones(n))[1], matrix)
    assert asked == ["vjp"] * 2


def test_cases_of_a_vmap_do_not_depend_on_each_other(counted):
    """Five cases of 4-3: three rows for each are enough. JAX asks for all fifteen of all cases."""
    a = counted.component("a", 4, 3)
    xs = jnp.linspace(0.1, 2.0, 20).reshape(5, 4)

    def f(x, scale):
        return jax.vmap(lambda each: a(each * scale))(x) ** 2

    expected = jax.jacfwd(f, argnums=(0, 1))(xs, 2.0)
    plan = plan_jacobian(f, argnums=(0, 1))(xs, 2.0)
    counted.asked.clear()
    found = jacobian(f, argnums=(0, 1))(xs, 2.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, expected)
    assert counted.asked == {("a", "apply"): 5, ("a", "vjp"): 15}
    assert plan.products == 15 < plan.alternatives["jacrev"][0]
    block = jacobian(f, sparse=True)(xs, 2.0)
    assert block.nse == 5 * 3 * 4
    np.testing.assert_allclose(block.todense(), expected[0], rtol=1e-10)


def test_operands_that_all_cases_use(counted):
    """The second operand is the same in all cases, so that its columns are full."""
    matrix = np.arange(6.0).reshape(2, 3)
    both = from_callable(
        lambda x, p: matrix @ x * p,
        jvp=lambda at, v: matrix @ (v[0] * at[1] + at[0] * v[1]),
        abstract=lambda x, p: jax.ShapeDtypeStruct((2,), x.dtype),
        name="both",
    )
    xs = jnp.linspace(0.1, 2.0, 12).reshape(4, 3)

    def f(x, p):
        return jax.vmap(both, (0, None))(x, p)

    expected = jax.jacrev(lambda x, p: x @ matrix.T * p, argnums=(0, 1))(xs, 2.0)
    found = jacobian(f, argnums=(0, 1))(xs, 2.0)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-14), found, expected
    )
    (request,) = plan_jacobian(f, argnums=(0, 1))(xs, 2.0).requests
    assert (request.way, request.products) == ("coloured columns", 4 * (3 + 1))


def test_several_inputs_and_outputs(asked):
    """`y` depends on `x` along a diagonal and on all of `p`; `z` does not say, and may depend on anything."""

    @chainrule.component(derivatives="finite", sparsity={"result_0": {"x": "diagonal", "p": None}})
    def f(
        x: Differentiable[Array[(4,), Float64]], p: Differentiable[Array[(), Float64]]
    ) -> tuple[Differentiable[Array[(4,), Float64]], Differentiable[Array[(1,), Float64]]]:
        return x**2 * p, np.sum(x * p, keepdims=True)

    x, p = jnp.linspace(0.1, 1.0, 4), jnp.asarray(2.0)

    def first(x, p):
        return apply_component(f, {"x": x, "p": p})["result_0"]

    (request,) = plan_jacobian(first, argnums=(0, 1))(x, p).requests
    assert (request.way, request.products) == ("coloured columns", 2)
    found = jacobian(first, argnums=(0, 1))(x, p)
    np.testing.assert_allclose(found[0], np.diag(2 * x * p), atol=1e-7)
    np.testing.assert_allclose(found[1], x**2, atol=1e-7)

    def both(x, p):
        return apply_component(f, {"x": x, "p": p})

    found = jacobian(both)(x, p)
    np.testing.assert_allclose(found["result_1"], [[p] * 4], atol=1e-7)


SOURCE = """
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64

class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]

sparsity = {"y": {"x": "diagonal"}}

def apply(inputs):
    return {"y": inputs.x ** 2}

def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": 2 * inputs.x * tangent_vector["x"]}
"""


def test_over_http(tmp_path):
    path = tmp_path / "squares.py"
    path.write_text(SOURCE)
    with serving(path) as url, Component.from_url(url) as squares:
        assert squares.sparsity == {"y": {"x": "diagonal"}}

        def f(x):
            return apply_component(squares, {"x": x})["y"]

        plan = plan_jacobian(f)(jnp.asarray(X))
        assert plan.products == 1
        np.testing.assert_allclose(plan.execute(jnp.asarray(X))[1], np.diag(2 * X))


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        ("diag", "expected .diagonal., a band .* found 'diag'"),
        ({"lower": -1, "upper": 1}, "expected .diagonal., a band"),
        ({"": "diagonal"}, "expected {output path: {input path: block}}"),
    ],
)
def test_patterns_that_cannot_be_read(sparsity, message):
    with pytest.raises(chainrule.ChainruleError, match=message):
        from_callable(lambda x: x, sparsity=sparsity, name="a")


def test_patterns_of_other_arrays(asked):
    with pytest.raises(
        chainrule.ChainruleError, match=r"names 'z'; the differentiable outputs are"
    ):

        @chainrule.component(derivatives="finite", sparsity={"z": {"x": "diagonal"}})
        def f(x: Differentiable[Array[(4,), Float64]]) -> Differentiable[Array[(4,), Float64]]:
            return x

    a = stencil(asked, "a", sparsity=np.ones((3, 3), bool))
    with pytest.raises(chainrule.InputError, match=r"that a declares .*9 elements; found 12 × 12"):
        jacobian(a)(X)
