"""Random programs that move, mix and loop over a vector's entries, with constants and indices outside."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

N = 12
"""Every step takes and gives a vector of this length."""

indices = st.lists(st.integers(-N - 4, N + 4), min_size=1, max_size=5)
modes = st.sampled_from(["clip", "drop", "fill", "promise_in_bounds"])


def gather(places, mode):
    mode = {"drop": "fill"}.get(mode, mode)
    places = jnp.asarray(places)
    if mode == "promise_in_bounds":
        places = places % N
    return lambda x: x.at[: len(places)].add(x.at[places].get(mode=mode, fill_value=0.0))


def scatter(places, mode, kind):
    mode = {"fill": "drop"}.get(mode, mode)
    places = np.unique(places)  # which of several wins is not defined
    if mode == "promise_in_bounds":
        places = np.unique(places % N)
    places = jnp.asarray(places)
    return lambda x: getattr(x.at[places], kind)(2.0 * x[: len(places)] + 1.0, mode=mode)


def dynamic_slice(start, size):
    start = jnp.asarray(start)
    return lambda x: x.at[:size].multiply(lax.dynamic_slice(x, (start,), (size,)))


def dynamic_update(start, size):
    start = jnp.asarray(start)
    return lambda x: lax.dynamic_update_slice(x, jnp.sin(x[:size]), (start,))


def mapped_update(starts):
    starts = jnp.asarray(starts)

    def step(x):
        rows = jax.vmap(lambda r, s, i: lax.dynamic_update_slice(r, s, (i,)))
        return rows(x.reshape(3, 4), jnp.cos(x[:6].reshape(3, 2)), starts).ravel()

    return step


def mapped_gather(starts, mode):
    starts = jnp.asarray(starts)

    def step(x):
        rows = jax.vmap(lambda r, i: r.at[i].get(mode=mode, fill_value=0.0))
        return x.at[:3].add(rows(x.reshape(3, 4), starts))

    return step


def at_a_computed_index(value):
    """The index is a constant, but only JAX knows which: a rule of its own stands in the way."""
    value = jnp.asarray(value, float)
    return lambda x: jnp.roll(x, jax.nn.relu(value).astype(int)) * x


def at_an_index_from_the_input():
    return lambda x: x.at[jnp.argmax(x)].set(x[(x[0] > 0.5).astype(int)] * 2.0)


def loop(length, shift):
    return lambda x: lax.scan(
        lambda c, _: (jnp.sin(c) + 0.1 * jnp.roll(c, shift) * x, None), x, None, length
    )[0]


def counted_loop(length):
    return lambda x: lax.fori_loop(0, length, lambda i, c: c.at[i].set(c[i + 1] * c[0]), x)


def stacking_loop(reverse):
    def step(x):
        carry, stacked = lax.scan(lambda c, y: (c * 0.5 + y, c * y), x[0], x, reverse=reverse)
        return stacked + jnp.roll(x, 1) * carry

    return step


def branch(threshold):
    return lambda x: lax.cond(x[1] > threshold, jnp.flip, lambda x: jnp.cumsum(x) * x, x)


def known_branch(index):
    index = jnp.asarray(index)
    return lambda x: lax.switch(index, [jnp.sin, jnp.flip, lambda x: x * x[0]], x)


def until(limit):
    return lambda x: lax.while_loop(lambda c: jnp.sum(c**2) < limit, lambda c: 1.5 * c + 0.1, x)


def convolution(kernel, mode):
    kernel = jnp.asarray(kernel)
    return lambda x: jnp.convolve(x, kernel, mode)[:N].sum() + jnp.convolve(x, kernel, "same")[:N]


def pooling(size, padding):
    def step(x):
        pooled = lax.reduce_window(x, 0.0, lax.add, (size,), (1,), padding)
        return jnp.pad(pooled, (0, N))[:N] + x

    return step


def padding(low, high, gap):
    return lambda x: jnp.resize(lax.pad(x, jnp.float64(2.0), [(low, high, gap)]), (N,))


def rounding_with_a_rule(flip):
    function = jax.custom_jvp(jnp.floor)
    function.defjvp(lambda x, t: (function(*x), jnp.flip(*t) if flip else t[0]))
    return lambda x: function(x) + x[0]


def in_rows(function):
    """A function of the vector as a matrix of three rows."""
    return st.just(lambda x: jnp.ravel(function(x.reshape(3, 4))))


def solved(rows):
    return jnp.linalg.solve(3 * jnp.eye(4) + 0.1 * rows[:, None], rows[..., None])


small = st.integers(-3, 3)
floats = st.floats(-2.0, 2.0)
three = {"min_size": 3, "max_size": 3}
kernels = st.lists(floats, min_size=1, max_size=4)
steps = st.one_of(
    st.builds(gather, indices, modes),
    st.builds(scatter, indices, modes, st.sampled_from(["set", "add", "multiply", "max"])),
    st.builds(dynamic_slice, st.integers(-20, 20), st.integers(1, N)),
    st.builds(dynamic_update, st.integers(-20, 20), st.integers(1, N)),
    st.builds(mapped_update, st.lists(st.integers(-2, 6), **three)),
    st.builds(
        mapped_gather, st.lists(st.integers(-5, 6), **three), st.sampled_from(["clip", "fill"])
    ),
    st.builds(at_a_computed_index, st.integers(-2, 5)),
    st.builds(at_an_index_from_the_input),
    st.builds(loop, st.sampled_from([1, 3, 100, 1000]), small),
    st.builds(counted_loop, st.integers(0, N - 1)),
    st.builds(stacking_loop, st.booleans()),
    st.builds(branch, floats),
    st.builds(known_branch, st.integers(-1, 4)),
    st.builds(until, st.floats(1.0, 50.0)),
    st.builds(convolution, kernels, st.sampled_from(["full", "same"])),
    st.builds(pooling, st.integers(1, 4), st.sampled_from(["SAME", "VALID"])),
    st.builds(padding, small, small, st.integers(0, 2)),
    st.builds(rounding_with_a_rule, st.booleans()),
    st.builds(lambda k: lambda x: jnp.roll(x, k) - 2 * x, small),
    in_rows(lambda rows: jnp.sort(rows, axis=1).T),
    in_rows(lambda rows: jnp.einsum("ij,kj->ik", rows, rows[::-1])[:, jnp.arange(4) % 3]),
    in_rows(lambda rows: jnp.fft.rfft(rows).real[:, jnp.arange(4) % 3] + rows),
    in_rows(solved),
    st.just(lambda x: jax.ops.segment_sum(x, jnp.arange(N) // 3, 4)[jnp.arange(N) % 4] + x),
    st.just(lambda x: jnp.where(x > 0.4, jnp.sin(x), x[::-1])),
    st.just(lambda x: jnp.concatenate([x[3:] ** 2, jnp.ones(2), x[:1]])),
    st.just(lambda x: jax.checkpoint(jnp.tanh)(x) * jnp.prod(x[:2])),
)


@st.composite
def programs(draw, longest=4):
    """A function of a vector of length N that does a few steps."""
    chosen = draw(st.lists(steps, min_size=1, max_size=longest))

    def program(x):
        for step in chosen:
            # Bounded, so that long programs stay finite.
            x = jnp.tanh(0.5 * step(x))
        return x

    return program


points = st.integers(0, 2**31).map(lambda seed: np.random.default_rng(seed).uniform(0.1, 0.9, N))
