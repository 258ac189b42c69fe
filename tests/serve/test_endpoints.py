"""What a well-behaved caller gets, over a thread and over a worker process."""

from __future__ import annotations

import numpy as np
import pytest

from chainrule._codec import SparseArray

FRAMES = "vnd.chainrule.frames"
FORMATS = ["json", "json+base64", FRAMES]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [0, 3, 20_000, 300_000])
def test_apply(any_served, format, size):
    x = np.arange(float(size))
    answer = any_served.apply(x=x, format=format, accept=f"application/{format}")
    assert answer.status == 200
    assert answer.headers["content-type"] == f"application/{format}"
    np.testing.assert_array_equal(answer.tree["y"], 2 * x)


def test_results_of_reused_memory_do_not_mix(any_served):
    for i in range(6):
        x = np.full(100_000, float(i))
        answer = any_served.apply("same", x=x, format=FRAMES, accept=f"application/{FRAMES}")
        np.testing.assert_array_equal(answer.tree["y"], x)


def test_an_input_that_the_author_keeps_is_not_overwritten(any_served):
    kept = np.full(100_000, 7.0)
    assert any_served.apply("keep", x=kept, format=FRAMES).status == 200
    for i in range(4):
        any_served.apply("same", x=np.full(100_000, float(i)), format=FRAMES)
    answer = any_served.apply("kept", format=FRAMES, accept=f"application/{FRAMES}")
    np.testing.assert_array_equal(answer.tree["y"], kept)


def test_derivatives(any_served):
    inputs = {"x": [1.0, 2.0, 3.0]}
    v = [1.0, 0.0, -1.0]
    jvp = any_served.post(
        "/jacobian_vector_product",
        {"inputs": inputs, "jvp_inputs": ["x"], "jvp_outputs": ["y"], "tangent_vector": {"x": v}},
    )
    vjp = any_served.post(
        "/vector_jacobian_product",
        {"inputs": inputs, "vjp_inputs": ["x"], "vjp_outputs": ["y"], "cotangent_vector": {"y": v}},
    )
    jacobian = any_served.post(
        "/jacobian", {"inputs": inputs, "jac_inputs": ["x"], "jac_outputs": ["y"]}
    )
    np.testing.assert_array_equal(jvp.tree["y"], 2 * np.array(v))
    np.testing.assert_array_equal(vjp.tree["x"], 2 * np.array(v))
    np.testing.assert_array_equal(jacobian.tree["y"]["x"], 2 * np.eye(3))


@pytest.mark.parametrize(
    ("accept", "is_sparse"),
    [
        ("application/json", False),
        ("application/json; sparse=coo", True),
        (f"application/{FRAMES}", True),
    ],
)
def test_sparse_jacobians_for_those_who_read_them(any_served, accept, is_sparse):
    request = {
        "inputs": {"x": [1.0, 2.0, 3.0], "action": "sparse"},
        "jac_inputs": ["x"],
        "jac_outputs": ["y"],
    }
    block = any_served.post("/jacobian", request, accept=accept).tree["y"]["x"]
    assert isinstance(block, SparseArray) is is_sparse
    np.testing.assert_array_equal(block.todense() if is_sparse else block, 2 * np.eye(3))


def test_abstract_eval(any_served):
    answer = any_served.post(
        "/abstract_eval", {"inputs": {"x": {"shape": [5], "dtype": "float64"}}}
    )
    assert answer.status == 200
    assert answer.tree["y"] == {"shape": [5], "dtype": "float64"}


def test_non_finite_numbers_are_exact(any_served):
    for format in FORMATS:
        answer = any_served.apply("nan", accept=f"application/{format}")
        np.testing.assert_array_equal(answer.tree["y"], [np.nan, np.inf, -np.inf])
        assert b"null" not in answer.body


def test_information(any_served):
    assert any_served.get("/health").tree == {"status": "ok"}
    ready = any_served.get("/ready")
    assert (ready.status, ready.tree["status"]) == (200, "ready")
    assert b"chainrule_calls_waiting" in any_served.get("/metrics").body
    document = any_served.get("/openapi.json").tree
    assert document["openapi"].startswith("3.1")
    assert "/apply" in document["paths"]


def test_page_fetches_nothing_from_elsewhere(any_served):
    page = any_served.get("/docs")
    assert page.status == 200
    assert b"http://" not in page.body.replace(any_served.url.encode(), b"")
    assert b"https://" not in page.body
    assert b"differentiable" in page.body
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"


def test_several_components(start_server, component_path, tmp_path):
    other = tmp_path / "halve.py"
    other.write_text(
        "from chainrule.runtime import component\n\n"
        "@component\n"
        "def halve(x: float) -> float:\n"
        "    return x / 2\n"
    )
    served = start_server(components=[component_path, f"{other}:halve"], workers=1)
    assert served.apply().tree["y"].tolist() == [2.0, 4.0]
    assert served.post("/c/fault_component/apply", {"inputs": {"x": [1.0]}}).tree["y"].tolist() == [
        2
    ]
    assert served.post("/c/halve/apply", {"inputs": {"x": 3.0}}).tree["result"] == 1.5
    assert served.get("/c/halve/health").status == 200
    assert "halve" in served.get("/c/halve/openapi.json").tree["info"]["title"]
    assert served.post("/c/nobody/apply", {}).status == 404
    served.stop()
