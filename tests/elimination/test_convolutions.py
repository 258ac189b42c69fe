"""Convolutions are banded: their Jacobians against `jax.jacfwd`, and what they hold."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from chainrule.elimination import jacobian, jacve

X = np.random.default_rng(0).normal(size=8)
W = np.random.default_rng(1).normal(size=3)


def check(*cases):
    """Compare in one compiled program: `(function, arguments, order)` each."""

    def jacobians(method):
        return [
            method(f, order, tuple(range(len(arguments))))(*arguments)
            for f, arguments, order in cases
        ]

    found, wanted = jax.jit(
        lambda: (
            jacobians(lambda f, order, argnums: jacve(f, order=order, argnums=argnums)),
            jacobians(lambda f, _, argnums: jax.jacfwd(f, argnums=argnums)),
        )
    )()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, wanted)


@st.composite
def convolutions(draw):
    """Shapes, and parameters of `conv_general_dilated`, with one or two spatial axes."""
    rank = draw(st.integers(1, 2))
    batch, outputs, inputs = (draw(st.integers(1, 2)) for _ in range(3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    signal = [draw(st.integers(1, 5)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    padding = []
    for n, k, d in zip(signal, kernel, dilation, strict=True):
        low, high = draw(st.integers(-1, 3)), draw(st.integers(-1, 3))
        padding.append((low, high + max(0, (k - 1) * d + 1 - n - low - high)))
    options = {
        "window_strides": [draw(st.integers(1, 2)) for _ in range(rank)],
        "padding": padding,
        "rhs_dilation": dilation,
        "feature_group_count": 1,
        "lhs_dilation": [draw(st.sampled_from([1, 1, 1, 2])) for _ in range(rank)],
    }
    if draw(st.booleans()):
        last = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC")}[rank]
        options["dimension_numbers"] = last
        return (batch, *signal, inputs), (*kernel, inputs, outputs), options
    return (batch, inputs, *signal), (outputs, inputs, *kernel), options


@settings(max_examples=4)
@given(st.lists(convolutions(), min_size=5, max_size=5), st.integers(0, 100))
def test_any_convolution(drawn, seed):
    numbers = np.random.default_rng(seed)
    check(
        *(
            (
                partial(lax.conv_general_dilated, **options),
                (numbers.normal(size=signal), numbers.normal(size=kernel)),
                "reverse",
            )
            for signal, kernel, options in drawn
        )
    )


def test_inside_of_a_program():
    check(
        *(
            case
            for mode, order in product(["full", "same", "valid"], ["forward", "reverse"])
            for case in (
                (lambda x, w, m=mode: jnp.convolve(jnp.sin(x), w**2, m) ** 2, (X, W), order),
                (lambda x, m=mode: jnp.convolve(jnp.convolve(x, W, m) ** 2, W, m), (X,), order),
            )
        )
    )


def test_grouped_channels_and_long_kernels():
    grouped = partial(
        lax.conv_general_dilated, window_strides=(1,), padding="SAME", feature_group_count=2
    )
    long = jnp.sin(jnp.arange(40.0))
    check(
        (grouped, (X.reshape(1, 2, 4), W[:2].reshape(2, 1, 1)), "reverse"),
        (lambda x: jnp.convolve(x, long), (X,), "reverse"),
    )


def test_a_known_stencil_is_a_band_without_numbers():
    found = jacobian(lambda u: jnp.convolve(u, jnp.array([1.0, -2.0, 1.0]), "same"), sparse=True)(X)
    assert str(found).count("offset-diagonal") == 2
    assert "22 of 64 entries" in str(found)
    np.testing.assert_array_equal(
        found.todense(), np.diag(-2 * np.ones(8)) + np.eye(8, k=1) + np.eye(8, k=-1)
    )


def test_a_kernel_that_is_known_later_is_a_band_too():
    def residual(u, w):
        return jnp.convolve(u, w, "same") + u**3

    n = 50_000  # dense, this would be 20 GB
    u = np.linspace(0, 1, n)
    found = jax.jit(jacobian(residual, sparse=True))(u, W)
    assert "149998 of 2500000000 entries" in str(found)
    tangent = np.cos(u)
    _, wanted = jax.jvp(lambda u: residual(u, W), (u,), (tangent,))
    np.testing.assert_allclose(found @ tangent, wanted, atol=1e-12)
