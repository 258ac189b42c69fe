"""Derivatives: our recipes and differences, tesseract-core 1.15.0 and bare JAX in one run."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.sparse import diags_array
from tesseract_core.runtime import Array as PeerArray
from tesseract_core.runtime import Float64 as PeerFloat64
from tesseract_core.runtime import experimental as peer_experimental
from tesseract_core.runtime import jax_recipes as peer

from benchmarks._harness import Row, interleaved, show
from chainrule._content_store import content_digest
from chainrule.runtime import derivatives as ours
from chainrule.runtime import jax_recipes as recipes
from chainrule.runtime._residuals import same_content


class Inputs(BaseModel):
    """What both recipes get: a model with one array."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    x: Any


def jacobians() -> list[Row]:
    rows = []
    for n_in, n_out in ((4, 1000), (1000, 4)):
        widths = (n_in, 512, 512, n_out)
        generator = np.random.default_rng(0)
        layers = [
            jnp.asarray(generator.normal(size=(b, a)) / a**0.5, jnp.float32)
            for a, b in pairwise(widths)
        ]
        rows += _jacobian_rows(layers, f"Jacobian R^{n_in} → R^{n_out}")
    return rows


def _jacobian_rows(layers: list[jax.Array], name: str) -> list[Row]:
    def program(x):
        for layer in layers:
            x = jnp.tanh(layer @ x)
        return x

    apply_jit = eqx.filter_jit(lambda d: {"y": program(d["x"])})
    inputs = Inputs(x=np.full(layers[0].shape[1], 0.1, np.float32))

    def called(x):  # the floor differentiates the very function that the recipes get
        return apply_jit({"x": x})["y"]

    modes = {"forward": jax.jit(jax.jacfwd(called)), "reverse": jax.jit(jax.jacrev(called))}
    floors = {mode: partial(_to_numpy, run, inputs.x) for mode, run in modes.items()}
    better = min(trial := interleaved(floors, rounds=3), key=lambda mode: trial[mode])

    def us() -> Any:
        return np.asarray(recipes.jax_jacobian(apply_jit, inputs, {"x"}, {"y"})["y"]["x"])

    def theirs() -> Any:
        return np.asarray(peer.jax_jacobian(apply_jit, inputs, {"x"}, {"y"})["y"]["x"])

    # In pairs: a contestant that walks through much memory leaves cold caches to the one after it.
    floor = interleaved({"us": us, "floor": floors[better]}, rounds=61)
    rival = interleaved({"us": us, "peer": theirs}, rounds=11)
    return [
        Row(name, floor["us"], floor["floor"], f"jit(jacfwd or jacrev), here {better}", bar=1.1),
        Row(name, rival["us"], rival["peer"], "tesseract-core 1.15.0"),
    ]


def _to_numpy(run: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(run(x))


def residual_reuse() -> list[Row]:
    generator = np.random.default_rng(0)
    weights = jnp.asarray(generator.normal(size=(600, 600)) / 25, jnp.float32)

    @eqx.filter_jit
    def apply_jit(d):
        def step(y, _):
            return jnp.tanh(weights @ y), None

        return {"y": jax.lax.scan(step, d["x"], length=150)[0]}

    x = generator.normal(size=(600, 100)).astype(np.float32)
    inputs = Inputs(x=x)
    arguments = (inputs, {"x"}, {"y"}, {"y": np.ones_like(x)})

    def ours_reused() -> None:
        np.asarray(recipes.jax_vjp(apply_jit, *arguments)["x"])

    def peer_reused() -> None:
        np.asarray(peer.jax_vjp(apply_jit, *arguments)["x"])

    def plain() -> None:
        np.asarray(fresh(arguments[0].x)["x"])

    fresh = jax.jit(
        lambda x: {"x": jax.vjp(lambda x: apply_jit({"x": x})["y"], x)[1](jnp.ones_like(x))[0]}
    )
    recipes.set_jax_vjp_cache_size(1)
    peer_experimental.set_jax_vjp_cache_size(1)
    try:
        recipes.jax_apply(apply_jit, inputs)
        peer.jax_apply(apply_jit, inputs)
        times = interleaved(
            {
                "us": ours_reused,
                "peer": peer_reused,
                "without": plain,
                "forward": lambda: np.asarray(apply_jit({"x": x})["y"]),
            },
            rounds=9,
        )
    finally:
        recipes.set_jax_vjp_cache_size(0)
        peer_experimental.set_jax_vjp_cache_size(0)
    note = f"forward pass {times['forward'] * 1e3:.0f} ms"
    return [
        Row("VJP after apply, residuals reused", times["us"], times["without"],
            "jit(vjp), not reused", bar=0.6, note=note),
        Row("VJP after apply, residuals reused", times["us"], times["peer"],
            "tesseract-core 1.15.0, cache on", note=note),
    ]  # fmt: skip


def content_keys() -> list[Row]:
    array = np.random.default_rng(0).normal(size=10_000_000)
    other, target = array.copy(), np.empty_like(array)
    times = interleaved(
        {
            "key": lambda: content_digest([array]),
            "verified": lambda: (content_digest([array]), same_content([array], [other])),
            "memcpy": lambda: np.copyto(target, array),
        },
        rounds=9,
    )
    return [
        Row("content key of 80 MB", times["key"], times["memcpy"], "memcpy", bar=2.0,
            note="sampled; equality is verified on a hit"),
        Row("content key of 80 MB and comparison", times["verified"], times["memcpy"], "memcpy",
            bar=2.0),
    ]  # fmt: skip


class PeerInputs(BaseModel):
    """The peer validates every perturbed point through its array types."""

    x: PeerArray[(None,), PeerFloat64]


class PeerOutputs(BaseModel):
    """Five outputs."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    a: Any
    b: Any
    c: Any
    d: Any
    e: Any


def evaluations() -> list[Row]:
    calls = {"us": 0, "peer": 0}

    def make(name: str) -> Any:
        def apply(inputs: Any) -> Any:
            calls[name] += 1
            return PeerOutputs(**{k: inputs.x[i::5].sum() for i, k in enumerate("abcde")})

        return apply

    inputs = PeerInputs(x=np.linspace(0.0, 1.0, 100))
    paths = ({"x"}, set("abcde"))
    found = ours.finite_difference_jacobian(make("us"), inputs, *paths)
    expected = peer_experimental.finite_difference_jacobian(make("peer"), inputs, *paths)
    for path in paths[1]:
        np.testing.assert_allclose(found[path]["x"], expected[path]["x"], atol=1e-8)
    counted = dict(calls)
    times = interleaved(
        {
            "us": lambda: ours.finite_difference_jacobian(make("us"), inputs, *paths),
            "peer": lambda: peer_experimental.finite_difference_jacobian(
                make("peer"), inputs, *paths
            ),
        },
        rounds=5,
    )
    claim = "finite-difference Jacobian, 100 inputs × 5 outputs"
    return [
        Row(claim, counted["us"], counted["peer"], "tesseract-core 1.15.0", bar=0.2,
            unit="evaluations"),
        Row(claim, times["us"], times["peer"], "tesseract-core 1.15.0"),
        *_tridiagonal(),
    ]  # fmt: skip


def _tridiagonal() -> list[Row]:
    n = 10_000
    calls = []

    def apply(inputs: Any) -> Any:
        calls.append(1)
        x = inputs["x"]
        y = -2.0 * x**2
        y[1:] += x[:-1]
        y[:-1] += x[1:]
        return {"y": y}

    pattern = diags_array([np.ones(n - 1), np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1])
    inputs = {"x": np.ones(n)}
    rows = []
    for sparsity, name, bar in ((pattern, "known", 6), ("detect", "detected", None)):
        calls.clear()
        ours.finite_difference_jacobian(apply, inputs, {"x"}, {"y"}, sparsity=sparsity)
        rows.append(
            Row(f"tridiagonal 10 000 × 10 000, pattern {name}", len(calls), 2 * n,
                "2 per input element", bar=None if bar is None else bar / (2 * n),
                unit="evaluations")
        )  # fmt: skip
    return rows


def run() -> list[Row]:
    return [*jacobians(), *residual_reuse(), *content_keys(), *evaluations()]


if __name__ == "__main__":
    show(run())
