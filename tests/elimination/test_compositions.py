"""Random programs over arrays of random shapes: every order gives JAX's Jacobian, and so does `auto`."""

import random

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.elimination import jacobian
from chainrule.elimination.internal import trace_function

UNARY = [
    jnp.sin,
    jnp.tanh,
    lambda x: x * 2.0 - 1.0,
    lambda x: x**2,
    lambda x: jnp.where(x > 0, x, 0.5 * x),
    lambda x: jnp.roll(x, 1, axis=0) if x.ndim else x,
    lambda x: jnp.flip(x, axis=-1) if x.ndim else -x,
    lambda x: x.T,
    lambda x: x.sum(axis=0) if x.ndim else x,
    lambda x: x.reshape(-1),
    lambda x: x[..., 1:] if x.ndim and x.shape[-1] > 1 else x,
    lambda x: jnp.pad(x, ((1, 0),) * x.ndim) if x.ndim else x,
    lambda x: jnp.concatenate([x, x * 3.0], axis=-1) if x.ndim else x,
    lambda x: jnp.exp(-(x**2)),
    lambda x: x - x.mean(),
    lambda x: x[np.array([0, 0])] if x.ndim else x,
    lambda x: jnp.cumsum(x, axis=0) if x.ndim else x,
]


def combine(a, b):
    """A binary operation that fits the shapes."""
    if a.shape == b.shape:
        return a * b
    if a.ndim == 1 and b.ndim == 1:
        return jnp.outer(a, b)
    if a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]:
        return a @ b
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return a * b.sum()
    return a + b


def make_program(seed, length):
    rng = random.Random(seed)
    choices = [
        (rng.random() < 0.6, rng.choice(UNARY), rng.random(), rng.random()) for _ in range(length)
    ]

    def program(x, y):
        values = [x, y]
        for is_unary, function, first, second in choices:
            a = values[int(first * len(values))]
            b = values[int(second * len(values))]
            new = function(a) if is_unary else combine(a, b)
            values.append(new if new.size <= 24 else new.mean())
        return values[-1], values[-2]

    return program


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6), length=st.integers(2, 9),
    shapes=st.tuples(*[st.sampled_from([(), (1,), (3,), (2, 3), (3, 2)])] * 2),
)  # fmt: skip
def test_every_order_gives_the_jacobian(seed, length, shapes):
    program = make_program(seed, length)
    numbers = np.random.default_rng(seed)
    arguments = [numbers.normal(size=shape) for shape in shapes]
    order = list(trace_function(program, (0, 1), arguments, {}).graph.required)
    random.Random(seed).shuffle(order)
    orders = ["forward", "reverse", "markowitz", order]

    @jax.jit
    def everything(*args):
        ours = [jacobian(program, (0, 1), order=each)(*args) for each in orders]
        return ours, jax.jacfwd(program, (0, 1))(*args)

    ours, reference = everything(*arguments)
    for each in ours:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), each, reference
        )
