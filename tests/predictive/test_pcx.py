"""The ancestor beside us: the same network, batches and optimisers end at the same weights."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest

pytest.importorskip("pcx", reason="the peer wants its own JAX: pip install --no-deps pcx==0.6.3")

from benchmarks import bench_predictive as bench


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
def test_three_batches_of_inference_learning_give_the_weights_of_pcx():
    sizes = (3, 5, 4, 2)
    keys = jax.random.split(jax.random.key(0), 3)
    linears = [
        eqx.nn.Linear(*pair, key=key)
        for pair, key in zip(itertools.pairwise(sizes), keys, strict=True)
    ]
    x, y = (jax.random.normal(key, (6, n)) for key, n in zip(keys, (3, 2), strict=False))
    runs = {who: make(linears, x, y, 3) for who, make in
            {"us": bench._ours, "pcx": bench._pcx, "jax": bench._floor}.items()}  # fmt: skip
    for _ in range(3):
        weights = {who: np.asarray(run()) for who, run in runs.items()}
    np.testing.assert_allclose(weights["us"], weights["pcx"], atol=1e-5)
    np.testing.assert_allclose(weights["us"], weights["jax"], atol=1e-5)
    assert np.abs(weights["us"] - linears[0].weight).max() > 1e-3
