"""Every family of primitives, in several orders, against `jax.jacfwd` and `jax.jacrev`."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from chainrule.elimination import jacobian, jacve, linearization
from chainrule.elimination.internal import trace_function

V = np.array([0.3, -0.7, 1.2, 0.5])
P = np.array([0.3, 0.7, 0.2, 0.5])
M = np.array([[0.2, -0.4, 0.9, 1.1], [0.6, 0.3, -0.8, 0.1], [-0.5, 1.3, 0.4, 0.7]])
S = M @ M.T + np.eye(3)

UNARY = {
    **{name: (getattr(jnp, name), V) for name in (
        "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1", "arctan", "arcsinh", "abs",
        "square", "cbrt", "negative", "sign", "floor", "ceil", "round", "reciprocal", "deg2rad",
    )},
    **{name: (getattr(jnp, name), P) for name in (
        "log", "log1p", "log2", "sqrt", "arcsin", "arccos", "arctanh",
    )},
    "arccosh": (lambda x: jnp.arccosh(1 + x), P),
    "rsqrt": (lax.rsqrt, P),
    "logistic": (lax.logistic, V),
    "erf": (lax.erf, V),
    "erfc": (lax.erfc, V),
    "erf_inv": (lax.erf_inv, P),
    "lgamma": (lax.lgamma, P),
    "digamma": (lax.digamma, P),
    "integer_pow": (lambda x: x**3 + x**-2 + x**1, V),
    "pow": (lambda x: x**2.5 + 2.0**x + x**x, P),
    "stop_gradient": (lambda x: lax.stop_gradient(x) * x, V),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 11, 52) * x, V),
    "convert": (lambda x: (x.astype(jnp.float32) * 2).astype(jnp.float64) * x, np.float32(V).astype(float)),
}  # fmt: skip

BINARY = {
    "add_sub": (lambda a, b: a + b - 2 * a, V, P),
    "mul_div": (lambda a, b: a * b / (b + 3), V, P),
    "atan2": (jnp.arctan2, V, P),
    "max_min": (lambda a, b: jnp.maximum(a, b) * jnp.minimum(a, 0.4), V, P),
    "ties": (lambda a, b: jnp.maximum(a, b) + jnp.minimum(a, b), P, P.copy()),
    "kinks": (lambda v: jnp.abs(v) + jnp.hypot(v, 0.0), jnp.array([-1.0, 0.0, -0.0, 2.0])),
    "rem": (lambda a, b: a % b, V, P),
    "broadcast_scalar": (lambda a, b: a * b + b, V, np.array(0.7)),
    "broadcast_axes": (lambda a, b: a * b - a / (b + 2), M, V),
    "broadcast_column": (lambda a, b: a * b, M, V[:3, None]),
    "where": (lambda a, b: jnp.where(a > 0.2, a * b, b), V, P),
    "where_scalar": (lambda a, b: jnp.where(b[0] > 0, a, b), V, P),
    "clamp": (lambda a, b: lax.clamp(0.0, a * b, 0.3), V, P),
    "logaddexp": (jnp.logaddexp, V, P),
    "hypot": (jnp.hypot, V, P),
    "select_many": (lambda a, b: lax.select_n(np.array([0, 1, 2, 1]), a, b, a * b), V, P),
}

MOVES = {
    "reshape": (lambda m: m.reshape(2, 6).reshape(4, 3).reshape(3, 2, 2), M),
    "reshape_incompatible": (lambda m: (m.reshape(4, 3) ** 2).reshape(6, 2), M),
    "transpose": (lambda m: m.T.reshape(-1) ** 2, M),
    "squeeze_expand": (lambda m: m[None].squeeze(0)[:, None] * 2, M),
    "broadcast": (lambda v: jnp.broadcast_to(v, (3, 4)) * v, V),
    "slice": (lambda m: m[1:, ::2] * m[:2, 1::2], M),
    "rev": (lambda m: m[::-1, ::-1] * m, M),
    "concatenate": (lambda m: jnp.concatenate([m, m[:, :1] * 2, m[:, 1:3]], axis=1), M),
    "stack": (lambda v: jnp.stack([v[0] * v[1], v[2], v[3] ** 2]), V),
    "stack_arrays": (lambda m: jnp.stack([m, m**2, np.ones((3, 4))], axis=-2), M),
    "unstack": (lambda m: [a * b for a, b in itertools.pairwise(jnp.unstack(m, axis=1))], M),
    "tile": (lambda m: jnp.tile(m, (2, 1, 3)) * jnp.tile(m**2, (1, 3)), M),
    "notes": (lambda m: lax.optimization_barrier((checkpoint_name(m, "m"), jnp.sin(m))), M),
    "split": (
        lambda m: [a * b for a, b in zip(jnp.split(m, 2, axis=1), (2.0, 3.0), strict=True)],
        M,
    ),
    "pad": (lambda m: jnp.pad(m, ((1, 2), (0, 1))) ** 2, M),
    "pad_interior": (lambda v: lax.pad(v, 0.0, [(-1, 2, 1)]) * 3, V),
    "pad_value": (lambda v: lax.pad(v[1:], v[0], [(1, 2, 0)]), V),
    "roll": (lambda m: jnp.roll(m, 1, axis=0) * jnp.roll(m, -2, axis=1), M),
    "stencil": (lambda v: (v[2:] - 2 * v[1:-1] + v[:-2]) * jnp.exp(v[1:-1]), V),
    "gather_known": (lambda m: m[np.array([2, 0, 2])] * m[np.array([1, 1, 0])], M),
    "gather_points": (lambda m: m[np.array([2, 0]), np.array([1, 3])] ** 2, M),
    "gather_traced": (lambda m: m[(m[0, 0] > 0).astype(int)] * m[2], M),
    "gather_filled": (
        lambda v: v.at[np.array([7, -1, 0])].get(mode="fill", fill_value=3.0) * v[:3],
        V,
    ),
    "gather_clipped": (lambda v: v.at[np.array([7, 1, 0])].get(mode="clip") * v[:3], V),
    "reshape_by_columns": (lambda m: m.reshape((4, 3), order="F") * m.T[:, ::-1], M),
    "take_along": (lambda m: jnp.take_along_axis(m, jnp.argsort(m, axis=1), axis=1) * m, M),
    "dynamic_slice": (lambda m: lax.dynamic_slice(m, (jnp.argmax(m[:, 0]), 1), (1, 2)) ** 2, M),
    "dynamic_update": (
        lambda m: lax.dynamic_update_slice(m**2, m[:1, :2], (1, jnp.argmax(m[0]))),
        M,
    ),
    "scatter_set": (lambda v: v.at[np.array([1, 3])].set(v[:2] ** 2) * v, V),
    "scatter_add": (lambda m: m.at[np.array([0, 0, 2])].add(m * 2), M),
    "scatter_mul": (lambda v: v.at[1].mul(v[0]), V),
    "scatter_max": (lambda v: v.at[np.array([0, 2])].max(v[1:3]), V),
    "diagonal": (lambda m: jnp.diagonal(m) ** 2, M),
    "tile_repeat": (lambda v: jnp.tile(v, 2) * jnp.repeat(v, 2), V),
    "tril": (lambda m: jnp.tril(m) @ m.T, M),
}

REDUCTIONS = {
    "sum": (lambda m: m.sum(0) * m.sum(1)[:, None], M),
    "mean_var": (lambda m: m.mean(1) / m.var(1), M),
    "max": (lambda m: m.max(1) * m.min(), M),
    "max_ties": (lambda v: jnp.max(jnp.concatenate([v, v])), V),
    "prod": (lambda m: m.prod(1), M),
    "prod_of_zeros": (lambda m: (m * np.eye(3, 4)).prod(1) + m[:, :2].prod(0).sum(), M),
    "prod_second": (lambda m: jax.jacrev(lambda r: r.prod(1))(m), M[:, :3]),
    "cumprod_second": (lambda v: jax.jacfwd(jnp.cumprod)(v), V),
    "cumsum": (lambda m: jnp.cumsum(m, axis=1) * m, M),
    "cumsum_reverse": (lambda m: lax.cumsum(jnp.sin(m), axis=0, reverse=True), M),
    "cumsum_of_one": (lambda m: jnp.cumsum(jnp.exp(m)[:, None, :], axis=1), M),
    "cumsum_within": (lambda m: jnp.cumsum(m[None] * m.T[:, None, :1], axis=1), M),
    "cumprod": (lambda m: jnp.cumprod(m, axis=0), M),
    "cummax": (lambda v: lax.cummax(v) * lax.cummin(v), V),
    "cumlogsumexp": (lambda v: lax.cumlogsumexp(v), V),
    "logsumexp": (lambda m: jax.nn.logsumexp(m, axis=1), M),
    "softmax": (lambda m: jax.nn.softmax(m, axis=0) * jax.nn.log_softmax(m, axis=1), M),
    "argmax": (lambda v: v * jnp.argmax(v) + v[jnp.argmin(v)], V),
    "sort": (lambda m: jnp.sort(m, axis=1) ** 2, M),
    "sort_with_payload": (lambda v: lax.sort((v, v**2), num_keys=1)[1], V),
    "top_k": (lambda v: lax.top_k(v, 2)[0] ** 2, V),
    "median": (jnp.median, V),
    "reduce_window": (lambda v: lax.reduce_window(v, -np.inf, lax.max, (2,), (1,), "VALID"), V),
    "norm": (lambda m: jnp.linalg.norm(m, axis=1) + jnp.linalg.norm(m), M),
    "dot": (lambda m: m @ m.T @ m, M),
    "dot_vectors": (lambda v: v @ v * v, V),
    "einsum_batched": (lambda m: jnp.einsum("bi,bj->bij", m, m**2), M),
    "dot_general_batched": (
        lambda m: jnp.einsum("bik,bkj->bij", m.reshape(3, 2, 2), m.reshape(3, 2, 2)),
        M,
    ),
    "outer": (lambda v: jnp.outer(v, v**2), V),
    "kron": (lambda v: jnp.kron(v[:2], v), V),
    "convolve": (lambda v: jnp.convolve(v, v[:2] ** 2), V),
    "conv": (
        lambda m: lax.conv(m.reshape(1, 1, 3, 4), m[:2, :2].reshape(1, 1, 2, 2), (1, 1), "SAME"),
        M,
    ),
}

LINEAR_ALGEBRA = {
    "cholesky": (lambda s: jnp.linalg.cholesky((s + s.T) / 2), S),
    "solve": (lambda s: jnp.linalg.solve(s, s[0] ** 2), S),
    "inv": (jnp.linalg.inv, S),
    "det": (lambda s: jnp.linalg.slogdet(s)[1] * jnp.linalg.det(s), S),
    "eigh": (lambda s: jnp.linalg.eigvalsh((s + s.T) / 2), S),
    "svd": (lambda m: jnp.linalg.svd(m, compute_uv=False), M),
    "qr": (lambda s: jnp.linalg.qr(s)[1], S),
    "triangular_batched": (
        lambda s: lax.linalg.triangular_solve(jnp.stack([s, 2 * s]), jnp.stack([s, s.T]), lower=True), S,
    ),
}  # fmt: skip

COMPLEX = {
    "fft": (lambda v: jnp.abs(jnp.fft.fft(v)), V),
    "rfft_power": (lambda m: jnp.abs(jnp.fft.rfft(m, axis=1)) ** 2, M),
    "parts": (
        lambda v: (lambda z: jnp.real(z * z) + jnp.imag(jnp.exp(z)))(lax.complex(v, v**2)),
        V,
    ),
    "conj": (lambda v: (lambda z: jnp.real(z * jnp.conj(z)).sum())(v * (1 + 2j)), V),
    "moved": (lambda v: jnp.real((v * 1j).reshape(2, 2).T @ (v + 1j).reshape(2, 2)), V),
    "angle": (lambda v: jnp.angle(lax.complex(v, v[::-1] + 2)), V),
}

CONTROL_FLOW = {
    "cond": (lambda v: lax.cond(v[0] > 0, jnp.sin, lambda x: x * x[1], v), V),
    "switch": (
        lambda v: lax.switch(jnp.argmax(v), [jnp.sin, jnp.cos, lambda x: x**2, jnp.exp], v),
        V,
    ),
    "scan": (lambda v: lax.scan(lambda c, x: (c * x + v[1], jnp.sin(c) * x), v[0], v), V),
    "scan_long": (
        lambda v: lax.scan(lambda c, _: (jnp.sin(c) * v, None), v, None, length=20)[0],
        V,
    ),
    "fori": (lambda v: lax.fori_loop(0, 5, lambda i, c: c * v + i, v), V),
    "map": (lambda m: lax.map(lambda r: r.sum() * r, m), M),
    "associative_scan": (lambda v: lax.associative_scan(jnp.multiply, v), V),
    "vmap": (lambda m: jax.vmap(lambda r: jnp.sin(r) * r.sum())(m), M),
    "jit": (lambda v: jax.jit(lambda x: jax.jit(jnp.sin)(x) * jax.jit(jnp.sin)(2 * x))(v), V),
    "remat": (lambda v: jax.checkpoint(lambda x: jnp.sin(jnp.exp(x)))(v) * v, V),
    "relu": (lambda v: jax.nn.relu(v) + jax.nn.gelu(v) * jax.nn.softplus(v) + jax.nn.selu(v), V),
    "random": (lambda v: v * jax.random.normal(jax.random.key(0), (4,)), V),
    "inner_grad": (lambda v: jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(v), V),
}

CASES = {
    f"{family}-{name}": case
    for family, cases in {
        "unary": UNARY, "binary": BINARY, "moves": MOVES, "reductions": REDUCTIONS,
        "linear_algebra": LINEAR_ALGEBRA, "complex": COMPLEX, "control_flow": CONTROL_FLOW,
    }.items()
    for name, case in cases.items()
}  # fmt: skip


def random_order(function, arguments):
    graph = trace_function(function, tuple(range(len(arguments))), arguments, {}).graph
    order = list(graph.required)
    random.Random(0).shuffle(order)
    return order


@pytest.mark.parametrize("name", CASES)
def test_equals_jax_in_every_order(name):
    function, *arguments = CASES[name]
    argnums = tuple(range(len(arguments)))
    orders = ["forward", "reverse", random_order(function, arguments)]

    @jax.jit
    def everything(*args):
        found = [jacve(function, order=order, argnums=argnums)(*args) for order in orders]
        return found, jax.jacrev(function, argnums)(*args)

    found, reference = everything(*arguments)
    for order, ours in zip(orders, found, strict=True):
        assert jax.tree.structure(ours) == jax.tree.structure(reference)
        jax.tree.map(
            lambda a, b, order=order: np.testing.assert_allclose(
                a, b, rtol=1e-10, atol=1e-10, err_msg=f"order {order}"
            ),
            ours,
            reference,
        )


def test_stacks_and_tiles_keep_their_structure():
    def function(v):
        a, b = jnp.unstack(jnp.stack([jnp.sin(v), v[::-1]]))
        return jnp.tile(a * b, 3), lax.optimization_barrier(a)

    found = linearization(function)(V)
    assert not found.graph.without_rule
    assert [block.nse for block in found.blocks] == [6 * 4, 4]


@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_sums_are_one_triangle_for_all_rows(axis):
    x = np.ones((30, 20))
    found = linearization(lambda x: jnp.cumsum(x, axis=axis))(x)
    assert not found.graph.without_rule
    (value,) = found.blocks.values
    assert value.size == x.shape[axis] ** 2


def test_polynomials_keep_their_structure():
    coefficients = np.array([2.0, -1.0, 3.0])
    found = linearization(lambda c, v: jnp.polyval(c, v) * jnp.sinc(v), (0, 1))(coefficients, V)
    assert not found.graph.without_rule
    assert found.blocks[1].nse == 4
    powers = np.sinc(V)[:, None] * V[:, None] ** np.array([2, 1, 0])
    np.testing.assert_allclose(found.blocks[0].todense(), powers, rtol=1e-12)


def test_while_loop_forward():
    """JAX has no reverse mode here, so the reference is forward mode."""

    def function(v):
        return lax.while_loop(lambda c: c.sum() < 20, lambda c: c * 1.5 + v**2, v)

    arguments = np.abs(V)
    reference = jax.jacfwd(function)(arguments)
    (found,) = jacve(function, order="reverse")(arguments)
    np.testing.assert_allclose(found, reference, rtol=1e-10)


def test_custom_vjp_uses_the_users_rule():
    @jax.custom_vjp
    def clipped(x):
        return jnp.sin(x)

    clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * 7.0 * x,))
    (found,) = jacve(lambda v: clipped(v) * 2, sparse_representation=True)(V)
    np.testing.assert_allclose(found.todense(), np.diag(14 * V))
    assert found.nse == 4


def test_custom_jvp_uses_the_users_rule_and_stays_diagonal():
    (found,) = jacve(jax.nn.relu, sparse_representation=True)(V)
    np.testing.assert_allclose(found.todense(), np.diag((V > 0).astype(float)))
    assert found.nse == 4


def test_branches_are_eliminated_inside_and_keep_their_structure():
    def function(v):
        return lax.cond(v[0] > 0, jnp.sin, lambda x: x * 3.0, v)

    for point in (V, -V):
        (found,) = jax.jit(jacve(function, sparse_representation=True))(point)
        assert found.nse == 4
        np.testing.assert_allclose(found.todense(), jax.jacrev(function)(point), rtol=1e-12)


def test_short_loops_are_unrolled_and_keep_their_structure():
    def function(v):
        return lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) * v, v)

    found = linearization(function)(V)
    assert found.graph.without_rule == ()
    assert found.blocks.nse == 4
    np.testing.assert_allclose(found.jacobian, jax.jacrev(function)(V), rtol=1e-10)


def test_boundary_conditions_keep_a_stencil_sparse():
    def function(u):
        inner = u[2:] - 2 * u[1:-1] + u[:-2]
        rows = jnp.zeros_like(u).at[1:-1].set(inner)
        return rows.at[0].set(u[0]).at[-1].add(u[-1] ** 2)

    @jax.jit
    def both(u):
        return jacobian(function, sparse=True, strict=True)(u), jax.jacrev(function)(u)

    found, reference = both(np.linspace(0, 1, 50))
    assert found.nse == 3 * 48 + 2
    np.testing.assert_allclose(jax.jit(lambda block: block.todense())(found), reference, rtol=1e-12)
