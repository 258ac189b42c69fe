"""The same calls give the same answers and the same exceptions over every transport."""

import asyncio
import re

import jax
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule.client import Component, Outcome
from chainrule.client._mapping import results_of
from chainrule.errors import CapabilityError, ComponentError, InputError, PathError
from chainrule.runtime.testing import run_test

X = np.array([1.0, 2.0, 3.0])


def test_apply_gives_plain_trees_with_arrays_and_numpy_scalars(component):
    result = component.apply({"x": X, "scale": 3})
    np.testing.assert_array_equal(result["y"], 3 * X**2)
    assert result["y"].dtype == np.float64
    assert type(result["total"]) is np.float64
    assert result == {"y": result["y"], "total": 6.0, "note": ""}


@pytest.mark.parametrize("x", [[1, 2], (1.0, 2.0), np.array([1, 2], np.int8), np.zeros(0)])
def test_inputs_may_be_lists_and_other_dtypes(component, x):
    np.testing.assert_array_equal(component.apply({"x": x})["y"], 2.0 * np.asarray(x) ** 2)


def test_inputs_may_be_models(component):
    class Anything(BaseModel):
        x: list[float]

    assert component.apply(Anything(x=[1.0]))["total"] == 1.0


def test_nan_and_infinities_survive(component):
    x = np.array([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(component.apply({"x": x, "scale": 1})["y"], x**2)


@pytest.mark.parametrize("size", [1, 4097, 300_000])
def test_arrays_of_any_size(component, size):
    x = np.arange(float(size))
    results = [component.apply({"x": x + k, "scale": 1})["y"] for k in range(3)]
    for k, result in enumerate(results):  # earlier results are not overwritten by later calls
        np.testing.assert_array_equal(result, (x + k) ** 2)


def test_derivatives(component):
    inputs = {"x": X, "scale": 3.0}
    jacobian = component.jacobian(inputs, ["x", "scale"], ["y", "total"])
    np.testing.assert_allclose(jacobian["y"]["x"], np.diag(6 * X))
    np.testing.assert_allclose(jacobian["y"]["scale"], X**2)
    np.testing.assert_allclose(jacobian["total"]["x"], np.ones(3))
    assert jacobian["total"]["scale"] == 0.0
    v, u = np.array([1.0, -1.0, 2.0]), np.array([0.5, 1.0, -2.0])
    jvp = component.jacobian_vector_product(inputs, ["x"], ["y"], {"x": v})
    np.testing.assert_allclose(jvp["y"], 6 * X * v)
    vjp = component.vector_jacobian_product(inputs, {"x"}, {"y"}, {"y": u})
    np.testing.assert_allclose(vjp["x"], 6 * X * u)


def test_second_derivatives(component):
    u, v, w = np.array([0.5, 1.0, -2.0]), np.array([1.0, -1.0, 2.0]), 3.0
    # ⟨u, y⟩ + total = scale Σ uᵢ xᵢ² + Σ xᵢ, at scale 2
    arguments = (["x", "scale"], ["y", "total"], {"y": u, "total": 1.0}, {"x": v, "scale": w})
    found = component.hessian_vector_product({"x": X}, *arguments)
    np.testing.assert_allclose(found["x"], 4 * u * v + 2 * u * X * w)
    np.testing.assert_allclose(found["scale"], np.sum(2 * u * X * v))
    later = component.submit("hessian_vector_product", {"x": X}, *arguments).result(timeout=300)
    np.testing.assert_array_equal(later["x"], found["x"])


@pytest.mark.parametrize(
    ("cotangent", "tangent", "code"),
    [
        ({}, {"x": X}, "vector_keys_mismatch"),
        ({"y": X}, {"y": X}, "vector_keys_mismatch"),
        ({"y": X}, {"x": [X]}, "array_dimensionality_mismatch"),
    ],
)
def test_unfit_vectors_of_second_derivatives(component, cotangent, tangent, code):
    with pytest.raises(InputError) as caught:
        component.hessian_vector_product({"x": X}, ["x"], ["y"], cotangent, tangent)
    assert caught.value.code == code


def test_batches_of_vectors(component):
    inputs, batch = {"x": X, "scale": 3.0}, np.arange(12.0).reshape(4, 3)
    pushed = component.jacobian_vector_product(
        inputs, ["x", "scale"], ["y", "total"], {"x": batch, "scale": np.arange(4.0)}, batched=True
    )
    np.testing.assert_allclose(pushed["y"], 6 * X * batch + X**2 * np.arange(4.0)[:, None])
    np.testing.assert_allclose(pushed["total"], batch.sum(1))
    job = component.submit(
        "vector_jacobian_product", inputs, ["x"], ["y"], {"y": batch}, batched=True
    )
    np.testing.assert_allclose(job.result(timeout=300)["x"], 6 * X * batch)


@pytest.mark.parametrize(
    ("tangent", "batched", "code"),
    [
        ({"x": X, "scale": 1.0}, True, "array_dimensionality_mismatch"),
        ({"x": [X, X], "scale": [1.0]}, True, "batch_mismatch"),
        ({"x": np.zeros((0, 3)), "scale": []}, True, "batch_mismatch"),
        ({"x": [X], "scale": [1.0]}, False, "array_dimensionality_mismatch"),
        ({"x": [X], "scale": [1.0]}, "yes", "bad_batched"),
    ],
)
def test_unfit_batches(component, tangent, batched, code):
    with pytest.raises(InputError) as caught:
        component.jacobian_vector_product({"x": X}, ["x", "scale"], ["y"], tangent, batched=batched)
    assert caught.value.code == code


@pytest.mark.parametrize("vector", [[1.0], [1.0, 2.0], 1.0, [X], np.ones(4)], ids=str)
def test_vectors_are_not_broadcast(component, vector):
    for call in (
        lambda: component.jacobian_vector_product({"x": X}, ["x"], ["y"], {"x": vector}),
        lambda: component.vector_jacobian_product({"x": X}, ["x"], ["y"], {"y": vector}),
        lambda: component.value_and_vjp({"x": X}, ["x"], ["y"], {"y": vector}),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code in ("array_shape_mismatch", "array_dimensionality_mismatch")


def test_value_and_gradient_in_one_call(component):
    u = np.array([0.5, 1.0, -2.0])
    found = component.value_and_vjp({"x": X, "scale": 3.0}, ["x"], ["y"], {"y": u})
    np.testing.assert_array_equal(found["outputs"]["y"], 3 * X**2)
    assert found["outputs"]["total"] == 6.0
    np.testing.assert_allclose(found["gradient"]["x"], 6 * X * u)


def test_abstract_eval_sends_shapes_only(component):
    expected = {"shape": [3], "dtype": "float64"}
    for x in (X, {"shape": [3], "dtype": "float64"}):
        result = component.abstract_eval({"x": x, "scale": {"shape": [], "dtype": "float64"}})
        assert dict(result["y"], shape=list(result["y"]["shape"])) == expected
        assert list(result["total"]["shape"]) == []


def test_what_it_is(component):
    assert component.name == "some_component"
    assert sorted(component.available_endpoints) == [
        "abstract_eval", "apply", "health", "hessian_vector_product", "jacobian",
        "jacobian_vector_product", "value_and_vjp", "vector_jacobian_product",
    ]  # fmt: skip
    assert component.capabilities["jacobian"].status == "native"
    assert str(component.capabilities["vector_jacobian_product"]) == "derived (jacobian)"
    assert component.differentiable_inputs["x"].dtype == "float64"
    assert list(component.differentiable_outputs) == ["y", "total"]
    assert component.health()["status"] == "ok"
    assert component.openapi_schema["openapi"] == "3.1.0"


def test_how_it_looks(component):
    assert component.name  # a repr shows only what is known already
    text = repr(component)
    assert "some_component" in text
    assert "f64[n] (differentiable)" in text
    assert "vector_jacobian_product derived (jacobian)" in text
    html = component._repr_html_()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", html)
    assert ("x", "f64[n]", "∂") in zip(cells, cells[1:], cells[2:], strict=False)
    assert "jacobian native" in html


def test_unfit_inputs(component):
    with pytest.raises(InputError) as caught:
        component.apply({"x": [[1.0]], "scale": "much"})
    error = caught.value
    assert error.code == "array_dimensionality_mismatch"
    assert error.path == "x"
    assert error.details["count"] == 2
    first = error.details["problems"][0]
    assert first["type"] == "array_dimensionality_mismatch"
    assert first["loc"] == ["inputs", "x"]
    assert first["ctx"] == {"actual_dims": 2, "expected_dims": 1}
    assert "input" not in first


@pytest.mark.parametrize(
    "test",
    [
        # `note` has its default.
        {"payload": {"inputs": {"x": [3.0]}}, "expected_outputs": {"y": [18.0], "total": 3.0}},
        {"endpoint": "abstract_eval", "payload": {"inputs": {"x": {"shape": [2], "dtype": "float64"}}},
         "expected_outputs": {"y": {"shape": [2], "dtype": "float64"},
                              "total": {"shape": [], "dtype": "float64"}, "note": ""}},
        {"payload": {"inputs": {"x": [1.0], "action": "raise"}}, "expected_exception": "ValueError",
         "expected_exception_regex": "^mesh is empty"},
        {"payload": {"inputs": {"x": [1.0]}, "more": 1}, "expected_exception": "ValueError"},
    ],
    ids=["defaults", "abstract_eval", "exception", "unknown_field"],
)  # fmt: skip
def test_regression_tests(component, test):
    result = run_test(component, {"endpoint": "apply"} | test)
    assert result.passed, result.message


def test_masked_arrays_are_refused_and_never_lose_their_mask(component):
    masked = np.ma.masked_equal([1.0, 2.0], 2.0)
    cotangent = {"y": masked}
    for call in (
        lambda: component.apply({"x": masked}),
        lambda: component.apply({"x": [1.0, np.ma.masked]}),
        lambda: component.vector_jacobian_product({"x": [1.0, 2.0]}, ["x"], ["y"], cotangent),
        lambda: component.submit("apply", {"x": masked}).result(),
    ):
        with pytest.raises(InputError, match=r"masked array.*array\.filled\(value\)") as caught:
            call()
        assert caught.value.code == "array_masked"
        assert caught.value.path.split(".")[-1] in ("x", "{y}", "y", "[1]")
    with pytest.raises(ComponentError, match=r"'y': .*array\.filled\(value\)") as caught:
        component.apply({"x": X, "action": "mask"})
    assert caught.value.code == "bad_output"
    unmasked = component.apply({"x": np.ma.masked_array([1.0, 2.0])})
    assert unmasked["y"].tolist() == [2.0, 8.0]


@pytest.mark.parametrize("bare", [np.ones(3), [1.0, 2.0], 1.0, None], ids=str)
def test_inputs_without_names_are_told_the_names(component, bare):
    with pytest.raises(InputError, match=r"by name; found .*\{'x': …, .*\}") as caught:
        component.apply(bare)
    assert caught.value.code == "invalid_input"
    if isinstance(bare, np.ndarray):  # its attributes were looked at
        assert caught.value.details["problems"][0]["loc"] == ["inputs", "x"]


def test_unknown_paths(component):
    with pytest.raises(PathError) as caught:
        component.jacobian({"x": X}, ["action"], ["y"])
    assert isinstance(caught.value, InputError)


def test_dimensions_agree_over_the_whole_call(component):
    with pytest.raises(InputError):
        component.jacobian_vector_product({"x": X}, ["x"], ["y"], {"x": np.ones(2)})


def test_the_authors_exception_arrives_with_type_message_and_traceback(component):
    with pytest.raises(ComponentError, match="mesh is empty") as caught:
        component.apply({"x": X, "action": "raise"})
    error = caught.value
    assert error.code == "component_failed"
    assert error.details["exception"] == "ValueError"
    assert error.details["exception_message"] == "mesh is empty"
    if component.local is not None:
        assert isinstance(error.__cause__, ValueError)
    elif component.transport.place.startswith(("process", "pool")):
        assert 'raise ValueError("mesh is empty")' in error.remote_traceback
        assert "mesh is empty" in error.__notes__[0]
    else:
        assert error.remote_traceback is None  # the server was not told to let it out


@pytest.mark.parametrize(
    ("name", "is_meant"),
    [
        ("KeyError", False),
        ("LookupError", False),
        ("RuntimeError", True),
        ("BaseException", True),
        ("some_component.KeyError", True),
        ("elsewhere.KeyError", False),
    ],
)
def test_exceptions_with_the_name_of_a_builtin_are_told_apart(component, name, is_meant):
    payload = {"inputs": {"x": X, "action": "raise_own"}}
    test = {"endpoint": "apply", "payload": payload, "expected_exception": name}
    assert run_test(component, test).passed == is_meant
    with pytest.raises(ComponentError) as caught:
        component.call("apply", payload)
    assert caught.value.details["exception"] == "KeyError"
    assert caught.value.details["exception_classes"] == [
        "some_component.KeyError",
        "builtins.RuntimeError",
        "builtins.Exception",
        "builtins.BaseException",
    ]


def test_what_a_component_refuses_is_the_mistake_of_the_component_that_called_it(component):
    def call_wrongly(x: float) -> float:
        return component.apply({"x": "nonsense"})["total"]

    def call_nothing(x: float) -> float:
        return component.call("hessian", {"inputs": {"x": X}})

    for outer in (call_wrongly, call_nothing):
        with pytest.raises(ComponentError) as caught:
            Component.from_api(outer).apply({"x": 1.0})
        assert caught.value.code == "inner_call_refused"


def test_an_endpoint_that_is_not_there(component):
    with pytest.raises(CapabilityError) as caught:
        component.submit("hessian", {"x": X})
    assert isinstance(caught.value, NotImplementedError)
    assert caught.value.code == "endpoint_missing"


def test_a_bad_run_id(component):
    for run_id in ("../../x", "x" * 200_000, 3):
        with pytest.raises(InputError) as caught:
            component.apply({"x": X}, run_id=run_id)
        assert caught.value.code == "bad_run_id"
    assert component.apply({"x": X}, run_id="fine-1")["total"] == 6.0


def test_jobs(component):
    job = component.submit("apply", {"x": X})
    assert job.result(timeout=300)["total"] == 6.0
    assert str(job.result()) == str(component.apply({"x": X}))
    assert job.done
    assert job.status == "done"
    assert repr(job) == "<Job apply: done>"
    failing = component.submit("apply", inputs={"x": X, "action": "raise"})
    with pytest.raises(ComponentError):
        failing.result(timeout=300)
    assert failing.status == "failed"
    assert (job.fraction, failing.fraction) == (1.0, None)
    vjp = component.submit("vector_jacobian_product", {"x": X}, ["x"], ["y"], {"y": X})
    np.testing.assert_allclose(vjp.result()["x"], 4 * X * X)
    shapes = component.submit("abstract_eval", {"x": X, "scale": 1.0}).result()
    assert list(shapes["y"]["shape"]) == [3]
    jacobian = component.submit("jacobian", {"x": X}).result()
    assert jacobian["y"].keys() == {"x", "scale"}
    for wrong in (("apply",), ("vector_jacobian_product", {"x": X}), ("apply", {}, {}, {})):
        with pytest.raises(TypeError, match="positional argument"):
            component.submit(*wrong)


def test_progress_ends_where_the_call_ends(component, capsys):
    reports = []

    def report(*progress):
        reports.append(progress)

    inputs = {"x": X}  # the author says nothing of progress
    component.submit("apply", inputs).result(progress=report)
    assert reports == [(1.0, "")]
    component.submit("apply", inputs).result(progress=True)
    assert list(component.map((i for i in [inputs] * 3), progress=True))
    assert capsys.readouterr().err.count("100%") == 2
    failing = {"x": X, "action": "raise"}
    for call in (
        lambda: component.submit("apply", failing).result(progress=report),
        lambda: component.submit("apply", failing).result(progress=True),
        lambda: list(component.map([inputs, failing], progress=True)),
    ):
        with pytest.raises(ComponentError):
            call()
    assert len(reports) == 1
    shown = capsys.readouterr().err
    assert (shown.count("failed"), shown.count("100%"), shown.count("50%")) == (2, 0, 1)


def test_async_twins(component):
    async def work():
        inputs = {"x": X}
        return await asyncio.gather(
            component.apply_async(inputs),
            component.jacobian_async(inputs, ["x"], ["total"]),
            component.jacobian_vector_product_async(inputs, ["x"], ["total"], {"x": X}),
            component.vector_jacobian_product_async(inputs, ["x"], ["total"], {"total": 1.0}),
            component.hessian_vector_product_async(
                inputs, ["x"], ["y"], {"y": np.ones(3)}, {"x": X}
            ),
            component.value_and_vjp_async(inputs, ["x"], ["total"], {"total": 1.0}),
            component.abstract_eval_async({"x": X, "scale": 1.0}),
            component.health_async(),
        )

    applied, jacobian, jvp, vjp, hvp, both, shapes, health = asyncio.run(work())
    np.testing.assert_array_equal(hvp["x"], 4 * X)
    assert both["outputs"]["total"] == 6.0
    assert health["status"] == "ok"
    assert applied["total"] == 6.0
    np.testing.assert_array_equal(jacobian["total"]["x"], np.ones(3))
    assert jvp["total"] == 6.0
    np.testing.assert_array_equal(vjp["x"], np.ones(3))
    assert list(shapes["y"]["shape"]) == [3]


def test_map_keeps_the_order_and_takes_inputs_when_there_is_room(component, capsys):
    taken = []

    def inputs():
        for k in range(20):
            taken.append(k)
            yield {"x": [float(k)]}

    results = component.map(inputs(), max_in_flight=np.int64(3))
    assert next(results)["total"] == 0.0
    assert len(taken) <= 4
    assert [result["total"] for result in results] == [float(k) for k in range(1, 20)]
    assert list(component.map([], progress=True)) == []
    assert len(list(component.map([{"x": X}] * 3, progress=True))) == 3
    assert not capsys.readouterr().out  # where results may go
    for wrong in (0, -1, 2.5):
        with pytest.raises(InputError, match="max_in_flight"):
            component.map([], max_in_flight=wrong)


def test_one_set_of_inputs_is_not_many(component):
    for wrong in ({"x": X}, "x", 3):
        with pytest.raises(InputError, match=r"found an? .*call apply\(inputs\)"):
            component.map(wrong)


def test_a_job_that_is_not_done_yet(component, tmp_path):
    gate = tmp_path / "gate"
    job = component.submit("apply", {"x": X, "action": f"until {gate}"})
    with pytest.raises(TimeoutError, match="not done yet; it goes on"):
        job.result(timeout=0.01)
    gate.touch()
    assert job.result()["total"] == 6.0


def test_traced_values_are_told_where_they_belong(component):
    if component.local is not None:
        pytest.skip("in this process the author's code may be JAX's, and take what is traced")
    for call in (component.apply, lambda inputs: component.submit("apply", inputs).result()):
        with pytest.raises(InputError, match=r"'inputs\.x': JAX is tracing.*apply_") as caught:
            jax.jit(lambda x, call=call: call({"x": x})["y"])(X)
        assert caught.value.code == "traced_value"


def test_the_first_failure_of_many_ends_what_is_under_way():
    ended = []

    def outcomes():
        try:
            yield Outcome(0, 1.0)
            yield Outcome(1, error=ComponentError("no"))
        finally:
            ended.append("now")

    results = results_of(outcomes())
    assert next(results) == 1.0
    with pytest.raises(ComponentError, match="no") as caught:
        next(results)
    assert ended == ["now"]  # though the error, which is still here, keeps every frame
    assert caught.value.__traceback__ is not None


def test_map_stops_at_the_first_failure(component):
    inputs = [{"x": X}, {"x": X, "action": "raise"}, {"x": X}]
    results = component.map(inputs, max_in_flight=1)
    assert next(results)["total"] == 6.0
    with pytest.raises(ComponentError):
        next(results)


def test_the_address_of_a_server_is_no_file():
    for make in (Component.from_api, Component.from_source):
        with pytest.raises(TypeError, match=r"Component\.from_url\('http://localhost:8000'\)"):
            make("http://localhost:8000")


def test_a_closed_component_says_so():
    component = Component.from_api(lambda_component())
    results = component.map([{"x": 1.0}] * 9, max_in_flight=1)
    assert next(results) == {"result": 2.0}
    component.close()
    for call in (lambda: component.apply({"x": 1.0}), lambda: next(results)):
        with pytest.raises(ConnectionError) as caught:
            call()
        assert caught.value.code == "closed"


def lambda_component():
    def double(x: float) -> float:
        return 2 * x

    return double
