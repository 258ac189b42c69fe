"""Operators that exporters of scikit-learn write (`ai.onnx.ml`, and `CDist` of onnxruntime), one entry each.

Their parameters are attributes, as flat lists of numbers. Ensembles of trees and nearest neighbours are left
out: they are constant between jumps, so a derivative of them says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_POST_TRANSFORMS: dict[bytes, Callable[..., Any]] = {
    b"NONE": lambda scores: scores,
    b"LOGISTIC": jax.nn.sigmoid,
    b"SOFTMAX": jax.nn.softmax,
}


def _numbers(node: Any, name: str, default: Any = ()) -> np.ndarray:
    return np.asarray(node.get(name, default), np.float32)


def _transformed(node: Any, scores: Any) -> Any:
    kind = node.get("post_transform", b"NONE")
    if kind not in _POST_TRANSFORMS:
        raise NotImplementedError(f"post_transform {kind.decode()}")
    return _POST_TRANSFORMS[kind](scores)


def _scaler(node: Any, x: Any) -> Any:
    return (x - _numbers(node, "offset", 0.0)) * _numbers(node, "scale", 1.0)


def _normalizer(node: Any, x: Any) -> Any:
    sizes = {
        b"L1": lambda: jnp.sum(jnp.abs(x), -1, keepdims=True),
        b"L2": lambda: jnp.sum(x * x, -1, keepdims=True),
        b"MAX": lambda: jnp.max(x, -1, keepdims=True),
    }
    kind = node.get("norm", b"MAX")
    size = sizes[kind]()
    # A row of zeros is divided by 1. That is decided before the root, whose derivative at 0 is infinite.
    size = jnp.where(size == 0, 1, size)
    return x / (jnp.sqrt(size) if kind == b"L2" else size)


def _linear(node: Any, x: Any, count: int) -> Any:
    weights = _numbers(node, "coefficients").reshape(count, -1)
    return x @ weights.T + _numbers(node, "intercepts", 0.0)


def _linear_regressor(node: Any, x: Any) -> Any:
    return _transformed(node, _linear(node, x, node.get("targets", 1)))


def _linear_classifier(node: Any, x: Any) -> Any:
    labels = np.asarray(node.get("classlabels_ints", ()))
    if len(_numbers(node, "intercepts")) != len(labels):
        raise NotImplementedError("labels of text, or one score for two of them")
    scores = _linear(node, x, len(labels))
    return [jnp.asarray(labels)[jnp.argmax(scores, -1)], _transformed(node, scores)]


def _support_vector_regressor(node: Any, x: Any) -> Any:
    count = node.get("n_supports", 0)
    if node.get("one_class", 0) or not count:
        raise NotImplementedError("one class, or no support vectors")
    vectors = _numbers(node, "support_vectors").reshape(count, -1)
    gamma, shift, degree = _numbers(node, "kernel_params", (0.0, 0.0, 0.0))
    kind = node.get("kernel_type", b"LINEAR")
    if kind == b"RBF":
        near = jnp.exp(-gamma * jnp.sum((x[:, None] - vectors) ** 2, -1))
    else:
        kernels: dict[bytes, Callable[[Any], Any]] = {
            b"LINEAR": lambda products: products,
            b"POLY": lambda products: (gamma * products + shift) ** degree,
            b"SIGMOID": lambda products: jnp.tanh(gamma * products + shift),
        }
        near = kernels[kind](x @ vectors.T)
    found = near @ _numbers(node, "coefficients") + _numbers(node, "rho", (0.0,))[0]
    return _transformed(node, found[:, None])


def _distances(node: Any, x: Any, y: Any) -> Any:
    squares = jnp.sum((x[:, None] - y[None]) ** 2, -1)
    if node.get("metric", b"sqeuclidean") == b"sqeuclidean":
        return squares
    # A root has no derivative at zero, where a point meets itself; the product with zero would be NaN.
    apart = squares > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1)), 0)


def _chosen_features(node: Any, x: Any, places: Any) -> Any:
    found = node.np.take(x, node.np.asarray(places).reshape(-1), axis=-1)
    return found[None] if found.ndim == 1 else found


LEARNERS: dict[str, Callable[..., Any]] = {
    "ai.onnx.ml:ArrayFeatureExtractor": _chosen_features,
    "ai.onnx.ml:LinearClassifier": _linear_classifier,
    "ai.onnx.ml:LinearRegressor": _linear_regressor,
    "ai.onnx.ml:Normalizer": _normalizer,
    "ai.onnx.ml:SVMRegressor": _support_vector_regressor,
    "ai.onnx.ml:Scaler": _scaler,
    "com.microsoft:CDist": _distances,
}
