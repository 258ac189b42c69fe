"""Losses of two small networks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

Array = Any


def _layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    # Means are subtracted as a row, so on matrices not from the axis they were taken over: that is the
    # function whose counts are published.
    mean = jnp.mean(x, axis=-1)
    variance = jnp.sum((x - mean) ** 2, axis=-1) / x.shape[-1]
    return (x - mean) / jnp.sqrt(variance + 1e-6) * scale + shift


def _softmax(x: Array, axis: int) -> Array:
    largest = lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf))
    exponentials = jnp.exp(x - largest)
    return exponentials / jnp.sum(exponentials, axis=axis, keepdims=True)


def _cross_entropy(logits: Array, target: Array) -> Array:
    return -jnp.sum(target * jnp.log(_softmax(logits, -1)), axis=-1)


def perceptron(
    x: Array, y: Array, w1: Array, b1: Array, w2: Array, b2: Array, scale: Array, shift: Array
) -> Array:
    """A loss of a network with one hidden layer, tanh, layer norm and softmax cross-entropy."""
    hidden = _layer_norm(jnp.tanh(w1 @ x + b1), scale, shift)
    return _cross_entropy(jnp.tanh(w2 @ hidden + b2), y)


def _attention(
    x: Array, wq: Array, wk: Array, wv: Array, w: Array, b: Array, scale: Array, shift: Array
) -> Array:
    q, k, v = wq @ x, wk @ x, wv @ x
    context = _softmax(q.T @ k, 1) @ v
    z = w @ _layer_norm(x + context, scale, shift) + b
    return z * (1.0 / (1.0 + jnp.exp(-z)))


def encoder(
    x: Array, y: Array, wq1: Array, wq2: Array, wk1: Array, wk2: Array, wv1: Array, wv2: Array,
    w1: Array, w2: Array, b1: Array, b2: Array,
    scale1: Array, shift1: Array, scale2: Array, shift2: Array,
) -> Array:  # fmt: skip
    """The losses, one per row, of two blocks of attention, layer norm and SiLU."""
    hidden = _attention(x, wq1, wk1, wv1, w1, b1, scale1, shift1)
    return _cross_entropy(_attention(hidden, wq2, wk2, wv2, w2, b2, scale2, shift2), y)
