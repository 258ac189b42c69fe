"""Residuals of `apply` reach the derivative that follows: counted, with any number of workers."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from chainrule.client import Component

RESIDUAL_COMPONENT = str(Path(__file__).with_name("residual_component.py"))
X = np.array([0.1, 0.7, -2.0])
C = np.array([1.0, -3.0, 0.5])


def forwards(trace):
    return trace.read_text().count("forward")


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["thread", "process", "two processes"])
def component(request, start_server):
    served = start_server(components=RESIDUAL_COMPONENT, workers=request.param)
    with Component.from_url(served.url, share_memory=False) as found:
        yield found


def gradient(component, trace, x=X):
    inputs = {"x": x, "trace": str(trace)}
    return component.vector_jacobian_product(inputs, ["x"], ["y"], {"y": C})["x"]


def test_a_derivative_after_apply_runs_no_second_forward_pass(component, tmp_path):
    trace = tmp_path / "trace"
    inputs = {"x": X, "trace": str(trace)}
    np.testing.assert_allclose(component.apply(inputs)["y"], np.sin(X))
    for _ in range(4):  # more than there are workers
        np.testing.assert_allclose(gradient(component, trace), np.cos(X) * C)
    tangent = component.jacobian_vector_product(inputs, ["x"], ["y"], {"x": C})
    np.testing.assert_allclose(tangent["y"], np.cos(X) * C)
    assert forwards(trace) == 1


def test_both_workers_find_them(component, tmp_path):
    """Calls at the same time cannot all be answered by the worker that ran `apply`."""
    trace = tmp_path / "trace"
    component.apply({"x": X, "trace": str(trace)})
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(gradient(component, trace))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        np.testing.assert_allclose(one, np.cos(X) * C)
    assert len(found) == 8
    assert forwards(trace) == 1


def test_other_inputs_have_other_residuals(component, tmp_path):
    trace = tmp_path / "trace"
    component.apply({"x": X, "trace": str(trace)})
    np.testing.assert_allclose(gradient(component, trace, X + 1), np.cos(X + 1) * C)
    assert forwards(trace) == 2
    np.testing.assert_allclose(gradient(component, trace, X + 1), np.cos(X + 1) * C)
    assert forwards(trace) == 2


def test_everything_derived_uses_them(component, tmp_path):
    trace = tmp_path / "trace"
    inputs = {"x": X, "trace": str(trace)}
    both = component.value_and_vjp(inputs, ["x"], ["y"], {"y": C})
    np.testing.assert_allclose(both["gradient"]["x"], np.cos(X) * C)
    batch = component.vector_jacobian_product(
        inputs, ["x"], ["y"], {"y": np.stack([C, 2 * C])}, batched=True
    )
    np.testing.assert_allclose(batch["x"], np.cos(X) * np.stack([C, 2 * C]))
    assert forwards(trace) == 1
    jacobian = component.jacobian(inputs, ["x"], ["y"])
    np.testing.assert_allclose(jacobian["y"]["x"], np.diag(np.cos(X)))
    assert forwards(trace) <= 2, "the shape of the outputs may take one"


def test_after_eviction_it_is_computed_again(start_server, tmp_path):
    """Room for one residual, in each of two workers and in what they share: four calls evict the first."""
    served = start_server(
        components=RESIDUAL_COMPONENT, workers=2, config={"max_residual_bytes": 700}
    )
    trace = tmp_path / "trace"
    x = np.linspace(0, 1, 80)  # its residuals have 640 bytes
    with Component.from_url(served.url, share_memory=False) as component:
        for shift in range(4):
            component.apply({"x": x + shift, "trace": str(trace)})
        assert forwards(trace) == 4
        answer = component.vector_jacobian_product(
            {"x": x, "trace": str(trace)}, ["x"], ["y"], {"y": np.ones(80)}
        )
        np.testing.assert_allclose(answer["x"], np.cos(x))
        assert forwards(trace) == 5


def test_in_this_process_and_with_nothing_kept(tmp_path):
    for limit, expected in ((1 << 20, 1), (0, 3)):
        trace = tmp_path / f"trace{limit}"
        component = Component.from_api(RESIDUAL_COMPONENT, config={"max_residual_bytes": limit})
        component.apply({"x": X, "trace": str(trace)})
        for _ in range(2):
            np.testing.assert_allclose(gradient(component, trace), np.cos(X) * C)
        assert forwards(trace) == expected


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_jax_recipe_hands_them_on_between_workers(start_server, tmp_path, monkeypatch, workers):
    """The forward pass runs for `apply`, and for no gradient after it, whichever worker is asked."""
    trace = tmp_path / "trace"
    monkeypatch.setenv("FORWARD_TRACE", str(trace))
    source = f"{Path(__file__).with_name('jax_component.py')}:waves"
    served = start_server(components=source, workers=workers)
    x = np.array([0.1, 0.7, -2.0], np.float32)
    slope = np.exp(-(x**2)) * (np.cos(x) - 2 * x * np.sin(x))
    with Component.from_url(served.url, share_memory=False) as component:
        y = component.apply({"x": x})["result"]
        np.testing.assert_allclose(y, np.sin(x) * np.exp(-(x**2)), rtol=1e-5)
        assert forwards(trace) == 1
        for _ in range(4):
            found = component.vector_jacobian_product(
                {"x": x}, ["x"], ["result"], {"result": C.astype(np.float32)}
            )
            np.testing.assert_allclose(found["x"], slope * C, rtol=1e-4, atol=1e-6)
        assert forwards(trace) == 1
        component.vector_jacobian_product(
            {"x": x + 1}, ["x"], ["result"], {"result": C.astype(np.float32)}
        )
        assert forwards(trace) == 2
