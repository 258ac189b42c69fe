"""Elimination is an ordinary JAX transformation: it composes with all the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.elimination import hessian, jacobian, linearization, value_and_jacobian

V = np.array([0.3, -0.7, 1.2])


def function(x):
    return jnp.sin(x) * x.sum() + x[::-1] ** 2


def close(found, wanted):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, wanted
    )


def test_jit_and_vmap():
    batch = np.stack([V, 2 * V])
    close(jax.jit(jacobian(function))(V), jax.jacrev(function)(V))
    close(jax.jit(jax.vmap(jacobian(function)))(batch), jax.vmap(jax.jacrev(function))(batch))


@pytest.mark.parametrize("settings", [{}, {"backend": "native"}, {"order": "reverse"}])
def test_inside_of_shard_map(settings):
    """One value differs from device to device, the other is shared; the Jacobian is that of the device."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))

    def shifted(x, y):
        return jnp.stack([x * y, y, jnp.maximum(x, y), 1.0])

    batch, shared = np.stack([V[0], V[1]]), V[2]
    mapped = jax.vmap(jacobian(shifted, (0, 1), **settings), (0, None))
    spread = jax.shard_map(mapped, mesh=mesh, in_specs=(jax.P("d"), jax.P()), out_specs=jax.P("d"))
    close(
        jax.jit(spread)(batch, shared),
        jax.vmap(jax.jacfwd(shifted, (0, 1)), (0, None))(batch, shared),
    )


def test_jacobian_of_a_mapped_function():
    batch = np.stack([V, 2 * V])
    block = jacobian(jax.vmap(function), sparse=True)(batch)
    assert block.nse == 2 * 9
    close(block.todense(), jax.jacrev(jax.vmap(function))(batch))


def test_grad_and_jacfwd_of_a_jacobian():
    def norm(jac):
        return lambda x: jnp.sum(jac(function)(x) ** 2)

    close(jax.grad(norm(jacobian))(V), jax.grad(norm(jax.jacrev))(V))
    close(jax.jacfwd(jacobian(function))(V), jax.jacfwd(jax.jacrev(function))(V))


def test_inside_scan():
    def newton(jac):
        def step(x, _):
            return x - 0.1 * jnp.linalg.solve(jac(function)(x) + 5 * jnp.eye(3), function(x)), None

        return jax.lax.scan(step, V, None, length=3)[0]

    close(newton(jacobian), newton(jax.jacrev))


def test_closing_over_tracers():
    def outer(a, x):
        return jacobian(lambda y: jnp.sin(a * y) * a)(x).sum()

    def reference(a, x):
        return jax.jacrev(lambda y: jnp.sin(a * y) * a)(x).sum()

    close(jax.jit(jax.grad(outer))(2.0, V), jax.grad(reference)(2.0, V))


def test_hessian():
    def energy(p):
        return jnp.sum(jnp.sin(p["a"]) * p["b"] ** 2)

    point = {"a": V, "b": V + 1}
    close(hessian(energy)(point), jax.hessian(energy)(point))
    diagonal = hessian(lambda x: jnp.sum(jnp.exp(x) * x), sparse=True)(V)
    assert diagonal.nse == 3


def test_value_and_auxiliary_results():
    value, derivative = value_and_jacobian(function)(V)
    close((value, derivative), (function(V), jax.jacrev(function)(V)))
    derivative, aux = jacobian(lambda x: (x**2, {"n": x.sum()}), has_aux=True)(V)
    close((derivative, aux), (np.diag(2 * V), {"n": V.sum()}))


def test_arguments_that_are_not_differentiated_stay_python():
    def power(x, n, *, shift):
        return x if n == 0 else power(x, n - 1, shift=shift) * x + shift

    close(jacobian(power)(V, 2, shift=1), jax.jacrev(power)(V, 2, shift=1))


def test_single_precision_and_half_precision():
    with jax.enable_x64(False):
        for dtype in (np.float32, jnp.bfloat16):
            x = jnp.asarray(V, dtype)
            found = jax.jit(jacobian(function))(x)
            assert found.dtype == dtype
            tolerance = 1e-5 if dtype == np.float32 else 0.1
            wanted = jax.jacrev(function)(jnp.asarray(V, np.float32))
            np.testing.assert_allclose(
                np.asarray(found, np.float32), wanted, rtol=tolerance, atol=tolerance
            )


def test_strict_dtype_promotion():
    with jax.numpy_dtype_promotion("strict"):
        mixed = jacobian(lambda x: jnp.sin(x.astype(np.float32)).astype(np.float64) * x)(V)
    np.testing.assert_allclose(np.diag(mixed), np.sin(V) + V * np.cos(V), rtol=1e-5)


def test_blocks_pass_through_jit():
    block = jax.jit(jacobian(lambda x: x[1:] * x[:-1], sparse=True))(V)
    np.testing.assert_allclose(block.todense(), jax.jacrev(lambda x: x[1:] * x[:-1])(V))


def test_linearization_reports_costs_without_running_again():
    found = linearization(function, order="reverse")(V)
    assert found.counts.multiplications == sum(muls for _, muls in found.counts.per_vertex)
    assert found.graph.without_rule == ()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,), ()])
def test_empty_and_single_element_arrays(shape):
    x = np.full(shape, 0.5)
    close(
        jacobian(lambda y: jnp.sin(y) * y.sum())(x), jax.jacrev(lambda y: jnp.sin(y) * y.sum())(x)
    )
