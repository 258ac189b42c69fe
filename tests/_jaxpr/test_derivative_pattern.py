"""Patterns of Jacobians: never too small, and as small as a reader of the program would expect."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax

from _jaxpr.random_moves import points, programs
from chainrule import ChainruleError
from chainrule._jaxpr import _derivative_pattern, derivative_pattern

X = np.linspace(0.1, 0.9, 12)
SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def mask_of(function, *operands):
    """Where the Jacobian may be non-zero, as a boolean matrix."""
    pattern = derivative_pattern(
        lambda *x: [jnp.ravel(y) for y in jax.tree.leaves(function(*x))],
        [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in operands],
    )
    mask = np.zeros(pattern.shape, bool)
    mask[pattern.rows, pattern.columns] = True
    return mask


def true_mask(function, x):
    found = np.asarray(jax.jacfwd(lambda x: jnp.ravel(function(x)))(x)).reshape(-1, x.size)
    return (found != 0) | np.isnan(found)


@settings(max_examples=25)
@given(programs(longest=3), points)
def test_no_entry_is_missing(program, x):
    missing = true_mask(program, x) & ~mask_of(program, x)
    assert not missing.any()


EXACT = {
    "stencil": lambda x: x[2:] - 2 * x[1:-1] + x[:-2] ** 2,
    "tiles and stacks": lambda x: jnp.tile(jnp.stack([x**2, x[::-1]]), (2, 1)),
    "roll": lambda x: jnp.roll(jnp.sin(x), 3),
    "padded, dilated, cut": lambda x: lax.pad(x, 0.0, [(2, -3, 1)]),
    "convolution": lambda x: jnp.convolve(x, jnp.array([1.0, 2.0, 3.0]), "same"),
    "strided convolution": lambda x: lax.conv_general_dilated(
        x[None, None], jnp.ones((1, 1, 3)), (2,), [(1, 2)], rhs_dilation=(2,)
    ),
    "pooling": lambda x: lax.reduce_window(x, 0.0, lax.add, (4,), (4,), "VALID"),
    "rows of a matrix": lambda x: x.reshape(3, 4).sum(axis=1),
    "products": lambda x: x.reshape(3, 4) @ jnp.ones((4, 2)),
    "batched products": lambda x: jnp.einsum("ij,ij->i", x.reshape(3, 4), x.reshape(3, 4)),
    "batched solves": lambda x: jax.vmap(jnp.linalg.solve)(
        x[:8].reshape(2, 2, 2) + 3 * jnp.eye(2), x[8:].reshape(2, 2)
    ),
    "gather, clipped": lambda x: x.at[jnp.array([0, 11, 50, -50])].get(mode="clip"),
    "gather, filled": lambda x: x.at[jnp.array([3, 50])].get(mode="fill", fill_value=0.0),
    "unsigned indices": lambda x: x.at[jnp.array([3, 2**32 - 1], jnp.uint32)].get(mode="clip"),
    "scatter-add, clipped": lambda x: jnp.zeros(12).at[jnp.array([5, 50])].add(x[:2], mode="clip"),
    "scatter-add, dropped": lambda x: jnp.zeros(12).at[jnp.array([5, 50])].add(x[:2], mode="drop"),
    "segments": lambda x: jax.ops.segment_sum(x, jnp.arange(12) // 5, 3),
    "dynamic slice, clamped": lambda x: lax.dynamic_slice(x, (jnp.array(50),), (3,)),
    "dynamic update, clamped": lambda x: lax.dynamic_update_slice(
        jnp.sin(x), x[:2], (jnp.array(50),)
    ),
    "long loop": lambda x: lax.scan(lambda c, _: (jnp.sin(c) + x, None), x, None, 10_000)[0],
    "while loop": lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: c + x * c, x),
    "counted loop": lambda x: lax.fori_loop(0, 5, lambda i, c: c.at[i].mul(x[i]), jnp.ones(12)),
    "stacked loop": lambda x: lax.scan(lambda c, y: (c, y**2), 0.0, x)[1],
    "branch that is known": lambda x: lax.cond(jnp.array(True), jnp.sin, jnp.flip, x),
    "complex in between": lambda x: (jnp.exp(1j * x) * x).real,
    "split": lambda x: jnp.split(x, [3, 7])[1] ** 2,
    "checkpoint": lambda x: jax.checkpoint(lambda x: jnp.sin(x) * x)(x),
}


@pytest.mark.parametrize("name", EXACT)
def test_patterns_are_exact_where_the_program_says_all(name):
    function = EXACT[name]
    assert np.array_equal(mask_of(function, X), true_mask(function, X))


DENSE = {
    "index from the input": lambda x: x[jnp.argmax(x)],
    "index behind a rule": lambda x: jnp.roll(x, jax.nn.relu(jnp.array(3.0)).astype(int)),
    "index from a float": lambda x: jnp.roll(x, jnp.sqrt(jnp.array(9.0)).astype(int)),
    "index out of bounds, against the promise": lambda x: x.at[jnp.array([50])].get(
        mode="promise_in_bounds"
    ),
    "index from a callback": lambda x: x[
        jax.pure_callback(lambda: np.int32(3), jax.ShapeDtypeStruct((), np.int32))
    ],
    "callback": lambda x: called_back(x),
}


@jax.custom_jvp
def called_back(x):
    return jax.pure_callback(np.sin, SHAPE, x, vmap_method="sequential")


@called_back.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return called_back(x), jax.pure_callback(np.multiply, SHAPE, t, x, vmap_method="sequential")


@pytest.mark.parametrize("name", DENSE)
def test_what_is_not_known_may_be_anywhere(name):
    assert mask_of(DENSE[name], X).all()


def test_several_operands_and_results():
    found = mask_of(lambda a, b: {"p": a * b[:2], "q": b[2]}, X[:2], X[:3])
    assert np.array_equal(found, [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1]])


def test_others_are_inputs_and_not_constants():
    """An index among them may be any; one that is closed over is known."""

    def function(x, place):
        return [x[place] * 2]

    place = jax.ShapeDtypeStruct((), np.int32)
    assert len(derivative_pattern(function, [SHAPE], [place]).rows) == 12
    assert len(derivative_pattern(lambda x: function(x, 3), [SHAPE]).rows) == 1


def test_constants_and_rules_with_the_same_equations_are_told_apart():
    def rolled(rule):
        function = jax.custom_jvp(jnp.floor)
        function.defjvp(lambda x, t: (function(*x), rule(*t)))
        return function

    for places in ([0, 1, 2], [2, 1, 0]):
        index = jnp.array(places)
        assert np.array_equal(
            mask_of(lambda x, i=index: x[i], X[:3]), np.eye(3, dtype=bool)[places]
        )
    assert np.array_equal(mask_of(rolled(jnp.flip), X[:3]), np.eye(3, dtype=bool)[::-1])
    assert np.array_equal(mask_of(rolled(jnp.negative), X[:3]), np.eye(3, dtype=bool))


def test_nothing_of_the_user_is_run():
    ran = []

    def function(x):
        jax.debug.callback(lambda: ran.append("debug"))
        shift = jax.pure_callback(
            lambda: (ran.append("pure"), np.int32(1))[1], jax.ShapeDtypeStruct((), np.int32)
        )
        return lax.cond(
            True,
            lambda x: jnp.roll(x, shift),
            lambda x: (jax.debug.callback(ran.append, 1), x)[1],
            x,
        )

    mask_of(function, X)
    jax.effects_barrier()
    assert ran == []


def refused(function, size):
    with pytest.raises(ChainruleError) as caught:
        derivative_pattern(lambda x: [function(x)], [jax.ShapeDtypeStruct((size,), np.float64)])
    assert caught.value.code == "no_pattern"
    return str(caught.value)


def test_work_is_bounded_by_count():
    assert "operations on sets" in refused(lambda x: jnp.exp(x[:, None] - x), 5000)
    assert "operations on sets" in refused(
        lambda x: lax.fori_loop(0, 10**6, lambda i, c: c - 0.1 * jnp.roll(c, 1), x), 5000
    )


def test_long_programs_are_refused(monkeypatch):
    monkeypatch.setattr(_derivative_pattern, "_MOST_EQUATIONS", 3)
    assert "equations" in refused(lambda x: jnp.sin(jnp.cos(jnp.exp(x))), 3)


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no mutable references")
def test_mutable_references_are_refused():
    def function(x):
        reference = jax.new_ref(jnp.zeros(3))
        reference[0] = x[1]
        return reference[...]

    assert "references" in refused(function, 3)
