"""Residual reuse: the same gradients, no second forward pass, and never a stale one."""

import logging
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule.runtime import _residuals
from chainrule.runtime.jax_recipes import jax_apply, jax_vjp, set_jax_vjp_cache_size


@pytest.fixture(autouse=True)
def _cache():
    set_jax_vjp_cache_size(2)
    yield
    set_jax_vjp_cache_size(0)


def make_apply():
    """A function that counts how often its forward pass really runs."""
    runs = []

    @eqx.filter_jit
    def apply(d):
        jax.debug.callback(lambda: runs.append(1))
        return {
            "y": jnp.tanh(d["x"]) * d["b"],
            "n": d["i"] + 1,
            "label": d["mode"],
            "s": jnp.sum(d["x"]),
        }

    return apply, runs


@pytest.fixture
def inputs():
    return {
        "x": np.linspace(0.0, 1.0, 4, dtype=np.float32),
        "b": np.float32(3.0),
        "i": np.arange(2),
        "mode": "m",
    }


def expected(inputs, u):
    x, b = inputs["x"], inputs["b"]
    return {"x": u * (1 - np.tanh(x) ** 2) * b, "b": np.sum(u * np.tanh(x))}


def count(runs):
    jax.effects_barrier()
    return len(runs)


def test_vjp_after_apply_runs_no_forward_pass(inputs):
    apply, runs = make_apply()
    outputs = jax_apply(apply, inputs)
    np.testing.assert_allclose(outputs["y"], np.tanh(inputs["x"]) * 3.0, rtol=1e-6)
    assert outputs["label"] == "m"
    before = count(runs)
    for scale in (1.0, 2.0):
        u = scale * np.arange(4.0)
        copies = {k: np.array(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
        found = jax_vjp(apply, copies, {"x", "b"}, {"y"}, {"y": u})
        for path, value in expected(inputs, u).items():
            np.testing.assert_allclose(found[path], value, rtol=1e-5)
    assert count(runs) == before == 1


def test_batches_and_exact_leaves(inputs):
    apply, runs = make_apply()
    jax_apply(apply, inputs)
    batch = {"y": np.eye(4), "n": np.zeros((4, 2))}
    found = jax_vjp(apply, inputs, {"x", "i"}, {"y", "n"}, batch, batched=True)
    np.testing.assert_allclose(
        found["x"], np.diag((1 - np.tanh(inputs["x"]) ** 2) * 3.0), rtol=1e-5
    )
    assert found["i"].shape == (4, 2)
    assert count(runs) == 1


def test_other_inputs_are_recomputed(inputs):
    apply, runs = make_apply()
    jax_apply(apply, inputs)
    moved = inputs | {"x": inputs["x"] + np.float32(0.5)}
    u = np.ones(4)
    found = jax_vjp(apply, moved, {"x", "b"}, {"y"}, {"y": u})
    for path, value in expected(moved, u).items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5)
    assert count(runs) == 2


def test_arrays_changed_in_place_are_recomputed(inputs):
    apply, _ = make_apply()
    jax_apply(apply, inputs)
    inputs["x"][:] = 0.25
    u = np.ones(4)
    found = jax_vjp(apply, inputs, {"x"}, {"y"}, {"y": u})
    np.testing.assert_allclose(found["x"], expected(inputs, u)["x"], rtol=1e-5)


def test_a_collision_of_digests_gives_the_right_gradient(inputs, monkeypatch):
    monkeypatch.setattr(_residuals, "content_digest", lambda arrays: b"same")
    apply, _ = make_apply()
    jax_apply(apply, inputs)
    moved = inputs | {"x": inputs["x"] + np.float32(0.5)}
    found = jax_vjp(apply, moved, {"x"}, {"y"}, {"y": np.ones(4)})
    np.testing.assert_allclose(found["x"], expected(moved, np.ones(4))["x"], rtol=1e-5)


def test_python_numbers_are_differentiated_without_the_cache():
    apply = eqx.filter_jit(lambda d: {"y": d["x"] * d["c"]})
    inputs = {"x": np.float32(2.0), "c": 3.0}
    jax_apply(apply, inputs)
    found = jax_vjp(apply, inputs, {"x", "c"}, {"y"}, {"y": 1.0})
    assert found["x"] == 3.0
    assert found["c"] == 2.0


def test_a_program_without_reverse_mode_still_runs(caplog):
    @eqx.filter_jit
    def apply(d):
        return {"y": jax.lax.while_loop(lambda x: x < 10.0, lambda x: 2.0 * x, d["x"])}

    with caplog.at_level(logging.INFO):
        assert jax_apply(apply, {"x": np.float32(1.0)})["y"] == 16.0
    assert "residuals are not kept: the program has no reverse-mode derivative" in caplog.text


def test_decides_without_running_the_program_again(inputs, caplog):
    set_jax_vjp_cache_size(2, only_if_it_pays=True)
    apply, runs = make_apply()
    with caplog.at_level(logging.INFO):
        jax_apply(apply, inputs)
        jax_apply(apply, inputs)
    assert count(runs) == 2
    assert caplog.text.count("VJP residuals are") == 1
    assert "operations" in caplog.text
    u = np.ones(4)
    found = jax_vjp(apply, inputs, {"x"}, {"y"}, {"y": u})
    np.testing.assert_allclose(found["x"], expected(inputs, u)["x"], rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "pays"),
    [
        (lambda x: jnp.linalg.matrix_power(x, 3), True),  # n³ operations, n² numbers
        (lambda x: jnp.tanh(jnp.tanh(x)), True),
        (lambda x: x + 1.0, False),  # recomputed faster than remembered
        (
            lambda x: jax.lax.scan(lambda y, _: (y * y, None), x, length=500)[0],
            False,
        ),  # 500 n² numbers
    ],
    ids=["contractions", "transcendental functions", "one addition", "many residuals"],
)
def test_keeps_residuals_where_the_forward_pass_is_longer_than_they_are(function, pays, caplog):
    set_jax_vjp_cache_size(2, only_if_it_pays=True)
    apply = eqx.filter_jit(lambda d: {"y": function(d["x"])})
    with caplog.at_level(logging.INFO):
        jax_apply(apply, {"x": np.eye(60, dtype=np.float32)})
    assert f"VJP residuals are {'kept' if pays else 'not kept'}:" in caplog.text


def test_many_threads_get_their_own_gradients(inputs):
    apply, _ = make_apply()

    def work(k):
        mine = inputs | {"x": inputs["x"] * np.float32(k % 5)}
        jax_apply(apply, mine)
        found = jax_vjp(apply, mine, {"x"}, {"y"}, {"y": np.ones(4)})
        return np.allclose(found["x"], expected(mine, np.ones(4))["x"], atol=1e-5)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(60)))


def test_off_by_default():
    set_jax_vjp_cache_size(0)
    apply, runs = make_apply()
    x = {"x": np.ones(4, np.float32), "b": np.float32(1), "i": np.arange(2), "mode": "m"}
    jax_apply(apply, x)
    jax_vjp(apply, x, {"x"}, {"y"}, {"y": np.ones(4)})
    assert count(runs) == 2


def test_programs_that_are_traced_keep_and_look_for_nothing(inputs):
    apply, _ = make_apply()
    u = np.linspace(1.0, 2.0, 4, dtype=np.float32)

    @jax.jit
    def gradient(x):
        traced = inputs | {"x": x}
        jax_apply(apply, traced)
        return jax_vjp(apply, traced, {"x"}, {"y"}, {"y": u})["x"]

    np.testing.assert_allclose(gradient(inputs["x"]), expected(inputs, u)["x"], rtol=1e-6)
    np.testing.assert_allclose(gradient(-inputs["x"]), expected(inputs, u)["x"], rtol=1e-6)
