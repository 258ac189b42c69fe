"""`Tesseract` where it is more than its ancestor, and the modules around it."""

import importlib
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from chainrule import ComponentError
from chainrule.compat import tesseract_core as tc
from chainrule.compat.tesseract_core.runtime.testing import finite_differences, regression
from chainrule.compat.tesseract_jax import apply_tesseract
from chainrule.runtime import component, load_component

PROGRAMS = Path(__file__).parent / "programs"
SCALING = PROGRAMS / "scaling" / "tesseract_api.py"


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_project_file_names_the_component():
    info = tc.Tesseract.from_tesseract_api(SCALING).openapi_schema["info"]
    assert (info["title"], info["version"]) == ("scaling", "1.2.3")


def test_environment_and_runtime_config(monkeypatch):
    monkeypatch.setenv("TESSERACT_VERSION", "9.9.9")
    given = {"name": "given"}
    info = tc.Tesseract.from_tesseract_api(SCALING, runtime_config=given).openapi_schema["info"]
    assert (info["title"], info["version"]) == ("given", "9.9.9")
    with pytest.raises(NotImplementedError, match="gpu_transport"):
        tc.Tesseract.from_tesseract_api(SCALING, runtime_config={"gpu_transport": "cuda_ipc"})
    with pytest.raises(ValidationError, match="extra_forbidden"):
        tc.Tesseract.from_tesseract_api(SCALING, runtime_config={"colour": "red"})


@pytest.mark.parametrize(
    "make",
    [
        lambda how: tc.Tesseract.from_tesseract_api(SCALING, gpu_transport=how),
        lambda how: tc.Tesseract.from_source(SCALING, gpu_transport=how),
        lambda how: tc.Tesseract.from_image("scaling", gpu_transport=how),
        lambda how: tc.Tesseract.from_tesseract_api(SCALING).with_encoding(gpu_transport=how),
    ],
)
def test_device_memory_is_not_shared(make):
    assert make("none").current_encoding.gpu_transport == "none"
    with pytest.raises(NotImplementedError, match="host memory"):
        make("cuda_ipc")
    with pytest.raises(ValueError, match="Unknown gpu_transport 'nvlink'"):
        make("nvlink")


def test_served_containers_share_no_device_memory_either():
    with pytest.raises(NotImplementedError, match="host memory"):
        tc.serve("scaling", gpu_transport="cuda_ipc")
    with pytest.raises(ValueError, match="Unknown gpu_transport 'nvlink'"):
        tc.serve("scaling", gpu_transport="nvlink")


def test_files_that_are_no_components(tmp_path):
    """Missing ones are missing, all others a `RuntimeError`, as in the ancestor."""
    for make in (tc.Tesseract.from_tesseract_api, tc.Tesseract.from_source):
        with pytest.raises(FileNotFoundError, match=r"nothing\.py"):
            make(tmp_path / "nothing.py")
    broken, other = tmp_path / "broken.py", tmp_path / "other.py"
    broken.write_text("import no_such_module\n")
    other.write_text("def apply(inputs): ...\n")
    for file, why in ((broken, "no_such_module"), (other, "InputSchema"), (tmp_path, "has no")):
        with pytest.raises(RuntimeError, match=why):
            tc.Tesseract.from_tesseract_api(file)
    own = tc.Tesseract.from_source(broken, python_executable=sys.executable)
    with pytest.raises(RuntimeError, match="no_such_module"):
        own.serve()


def test_inputs_that_are_refused_while_tracing():
    scaling = tc.Tesseract.from_tesseract_api(SCALING)
    for inputs, place in (({}, ("inputs", "part")), ({"part": {"v": 1.0}, "more": 2.0}, ("more",))):
        with pytest.raises(ValidationError) as caught:
            jax.jit(lambda inputs: apply_tesseract(scaling, inputs)["y"])(inputs)
        assert caught.value.errors()[0]["loc"] == place
    with pytest.raises(ValueError, match="`vmap_method` is one of") as caught:
        apply_tesseract(scaling, {"part": {"v": np.ones(1)}}, vmap_method="all")
    assert not isinstance(caught.value, ValidationError)


def test_missing_products_are_derived():
    scaling = tc.Tesseract.from_tesseract_api(SCALING)
    inputs = {"part": {"v": np.array([0.0, 1.0]), "s": 3.0}}
    assert "jacobian_vector_product" not in scaling.available_endpoints
    assert "jacobian_vector_product" in scaling.derived_endpoints
    asked = inputs, ["part.s"], ["y"], {"part.s": 1.0}
    found = scaling.jacobian_vector_product(*asked)
    np.testing.assert_allclose(found["y"], np.sin([0.0, 1.0]))
    as_there = scaling.with_derived_endpoints(False)
    assert as_there.derived_endpoints == []
    with pytest.raises(NotImplementedError, match="jacobian_vector_product"):
        as_there.jacobian_vector_product(*asked)


def test_a_tesseract_in_jax_as_an_argument_and_with_wrong_inputs():
    scaling = tc.Tesseract.from_tesseract_api(SCALING)
    assert jax.tree.leaves(scaling) == []
    with jax.enable_x64(True):
        run = jax.jit(lambda t, v: apply_tesseract(t, {"part": {"v": v, "s": 2.0}})["y"])
        np.testing.assert_allclose(run(scaling, np.array([0.0, 1.0])), 2 * np.sin([0.0, 1.0]))
    for wrong in ("text", None, object()):
        for s in (2.0, jnp.ones(())):
            call = lambda s, v=wrong: apply_tesseract(scaling, {"part": {"v": v, "s": s}})  # noqa: E731
            with pytest.raises(TypeError, match="array"):
                (jax.jit(call) if isinstance(s, jax.Array) else call)(s)


def test_profiles_and_traces_are_logged_when_they_are_asked_for(caplog):
    settings = {"profiling": True, "tracing": True}
    scaling = tc.Tesseract.from_tesseract_api(SCALING, runtime_config=settings)
    scaling.apply({"part": {"v": np.array([0.0, 1.0])}})
    text = caplog.text
    assert "Profiling Statistics" in text
    assert "called with" in text


NOT_MARKED = """
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float32]]
    n: Array[(), Float32]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float32]]

def apply(inputs):
    return OutputSchema(y=inputs.n * inputs.x)

def jacobian(inputs, jac_inputs, jac_outputs):
    raise NotImplementedError
"""


def test_what_jax_cannot_have_of_a_tesseract_is_a_value_error(tmp_path):
    (tmp_path / "tesseract_api.py").write_text(NOT_MARKED)
    bare = tc.Tesseract.from_tesseract_api(tmp_path / "tesseract_api.py")
    x = np.ones(2, np.float32)

    def call(n):
        return apply_tesseract(bare, {"x": x, "n": n})["y"].sum()

    assert float(call(np.float32(3.0))) == 6.0  # without abstract_eval, eagerly
    with pytest.raises(ValueError, match="abstract_eval"):
        jax.jit(call)(3.0)
    (tmp_path / "tesseract_api.py").write_text(
        NOT_MARKED + "\ndef abstract_eval(abstract_inputs):\n    return {'y': abstract_inputs.x}\n"
    )
    bare = tc.Tesseract.from_tesseract_api(tmp_path / "tesseract_api.py")
    with pytest.raises(ValueError, match="`n`"):
        jax.make_jaxpr(jax.grad(call))(3.0)


def test_a_path_that_was_refused_is_named_where_it_was_asked_for():
    scaling = tc.Tesseract.from_tesseract_api(SCALING)
    inputs = {"part": {"v": np.array([0.0, 1.0])}}
    with pytest.raises(ValidationError) as caught:
        scaling.jacobian(inputs, ["part.v", "name"], ["y"])
    (problem,) = caught.value.errors()
    assert (problem["loc"], problem["input"]) == (("jac_inputs", 1), "name")
    assert "part.v" in problem["msg"]


def test_the_authors_exception_is_the_cause():
    scaling = tc.Tesseract.from_tesseract_api(SCALING)
    with pytest.raises(RuntimeError, match="the author says no") as caught:
        scaling.apply({"part": {"v": [1.0]}, "name": "bad"})
    assert isinstance(caught.value, ComponentError)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_component_without_derivatives():
    @component
    def double(x: float) -> float:
        return 2 * x

    handle = tc.Tesseract.from_tesseract_api(double)
    assert handle.apply({"x": 3.0}) == {"result": 6.0}
    with pytest.raises(NotImplementedError):
        handle.jacobian({"x": 3.0}, ["x"], ["result"])


def test_from_source_lives_between_serve_and_teardown():
    wave = tc.Tesseract.from_source(
        PROGRAMS / "wave" / "tesseract_api.py", python_executable=sys.executable
    )
    with wave:
        found = wave.apply({"part": {"v": np.array([0.5]), "s": 2.0}})
        np.testing.assert_allclose(found["y"], 2 * np.sin([0.5]))
        with pytest.raises(RuntimeError):
            wave.serve()
    with pytest.raises(RuntimeError):
        wave.apply({"part": {"v": np.array([0.5]), "s": 2.0}})


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("jax_recipes", "jax_apply jax_jacobian jax_jvp jax_vjp jax_abstract_eval"),
        ("tree_transforms", "get_at_path set_at_path flatten_with_paths filter_func split_path"),
        ("schema_types", "Array Bool Complex64 Complex128 is_differentiable"),
        ("file_interactions", "InputPath OutputPath require_file"),
    ],
)
def test_mirrored_modules(module, names):
    ours = importlib.import_module(f"chainrule.compat.tesseract_core.runtime.{module}")
    assert set(names.split()) <= set(dir(ours))
    assert all(getattr(ours, name) is not None for name in names.split())
    with pytest.raises(AttributeError):
        ours.no_such_name


def test_check_gradients_lists_failures():
    right = load_component(str(PROGRAMS / "wave" / "tesseract_api.py"))
    payload = {"inputs": {"part": {"v": [0.5, 1.0], "s": 2.0}}}
    found = list(finite_differences.check_gradients(right, payload, show_progress=False))
    assert {endpoint for endpoint, _, _ in found} >= {"jacobian", "vector_jacobian_product"}
    assert all(not failures and count > 0 for _, failures, count in found)


def test_regression_result():
    spec = {"endpoint": "apply", "payload": {"inputs": {}}, "expected_exception": "KeyError"}
    result = regression.regress_test_case(load_component(str(SCALING)), None, spec)
    assert result.status == "failed"


def test_apply_tesseract_takes_every_handle_and_vmaps_by_default():
    source = str(PROGRAMS / "wave" / "tesseract_api.py")
    handles = [tc.Tesseract.from_tesseract_api(source), load_component(source)]
    with suppress(ImportError):
        handles.append(
            importlib.import_module("tesseract_core").Tesseract.from_tesseract_api(source)
        )
    batch = jnp.arange(6.0, dtype=jnp.float32).reshape(3, 2)
    with jax.enable_x64(True):
        for handle in handles:
            found = jax.vmap(
                lambda v, handle=handle: apply_tesseract(handle, {"part": {"v": v, "s": 2.0}})["y"]
            )(jnp.asarray(batch, jnp.float64))
            np.testing.assert_allclose(found, 2 * np.sin(batch), rtol=1e-6)


def test_settings_are_updated_and_overridden(monkeypatch):
    from chainrule.compat.tesseract_core.runtime import config

    monkeypatch.setenv("TESSERACT_NAME", "from-environment")
    with config.override_config():
        config.update_config(output_format="json+base64")
        config.update_config(version="1.0.0")
        taken = config.snapshot_config()
        assert config.get_config().output_format == "json+base64"
        assert config.get_config().name == "from-environment"
        wave = tc.Tesseract.from_tesseract_api(PROGRAMS / "wave" / "tesseract_api.py")
        assert wave.component.version == "1.0.0"
        with config.override_config():
            assert config.get_config().version == "unknown"
        with pytest.raises(ValueError, match="nonsense"):
            config.update_config(nonsense=1)
    assert config.get_config().version == "unknown"
    with config.override_config(taken):
        assert config.get_config().version == "1.0.0"


def test_array_types_are_recognised():
    from chainrule.compat.tesseract_core.runtime import schema_types

    array = schema_types.Array[(3,), "float32"]
    assert issubclass(array, schema_types.PydanticArrayAnnotation)
    assert issubclass(schema_types.Differentiable[array], schema_types.PydanticArrayAnnotation)
    assert not issubclass(int, schema_types.PydanticArrayAnnotation)
    assert schema_types.ArrayFlags.DIFFERENTIABLE == 1
    assert "float32" in schema_types.ALLOWED_DTYPE_NAMES
    assert "ArrayFlags" in dir(schema_types)


@pytest.mark.parametrize("path", ["[0]", "{key}", "{a.b}", r"{a\{b\\}", "name"])
def test_segments_of_paths_are_read_as_the_ancestor_does(path):
    real = pytest.importorskip("tesseract_core.runtime.tree_transforms")
    from chainrule.compat.tesseract_core.runtime.tree_transforms import path_to_index_op

    assert path_to_index_op(path) == real.path_to_index_op(path)
    with pytest.raises(ValueError, match="segment"):
        path_to_index_op(f"{path}.more")


def test_a_test_endpoint_runs_tests():
    from chainrule.compat.tesseract_core.runtime.testing import regression

    wave = load_component(str(PROGRAMS / "wave" / "tesseract_api.py"))
    endpoint = regression.make_test_endpoint(wave, [])
    inputs = {"part": {"v": [0.5], "s": 2.0}}
    config = regression.TestCliConfig(input_path="data")
    right = regression.TestSpec(
        endpoint="apply",
        payload={"inputs": inputs},
        expected_outputs={"y": [2 * np.sin(0.5)], "z": 0.25},
        cli_config=config.model_dump(),
    )
    assert endpoint(right).status == "passed"
    assert (
        endpoint(right.model_copy(update={"expected_outputs": {"y": [0.0], "z": 0.25}})).status
        == "failed"
    )


@pytest.mark.parametrize(
    ("flags", "refusal", "code"),
    [([], "unsafe_bind", 1), (["--token-file", "/nowhere"], "Error: The token file", 2)],
)
def test_a_server_beyond_loopback_needs_a_token(flags, refusal, code):
    api = PROGRAMS / "wave" / "tesseract_api.py"
    done = subprocess.run(
        [sys.executable, "-m", "chainrule.compat.tesseract_core.runtime", "serve", "--port", "0",
         "--host", "0.0.0.0", *flags],
        capture_output=True, text=True, timeout=60, env={**os.environ, "TESSERACT_API_PATH": str(api)},
    )  # fmt: skip
    assert done.returncode == code
    assert refusal in done.stderr


# --- Nothing derived: `with_derived_endpoints(False)` under JAX.

ONE_ENDPOINT = """
import numpy as np
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float64, ShapeDType

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), Float64]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), Float64]]

def apply(inputs):
    return OutputSchema(y=inputs.x**3)

def abstract_eval(abstract_inputs):
    return {"y": abstract_inputs.x}

"""
ENDPOINTS = {
    "jacobian_vector_product": '''
def jacobian_vector_product(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return {"y": 3 * inputs.x**2 * tangent_vector["x"]}
''',
    "vector_jacobian_product": '''
def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 3 * inputs.x**2 * cotangent_vector["y"]}
''',
}  # fmt: skip


def derivative_of(endpoint, f, x):
    """The directional derivative along ones, by the transformation that needs this endpoint."""
    if endpoint == "jacobian_vector_product":
        return jnp.sum(jax.jvp(f, (x,), (jnp.ones_like(x),))[1])
    return jnp.sum(jax.grad(lambda x: jnp.sum(f(x)))(x))


def check_nothing_is_derived(full, written, *, is_jitted):
    (other,) = set(ENDPOINTS) - {written}
    bare = full.with_derived_endpoints(False)
    assert other in full.derived_endpoints
    assert bare.derived_endpoints == []

    def function_of(tesseract):
        f = lambda x: apply_tesseract(tesseract, {"x": x})["y"]  # noqa: E731
        return jax.jit(f) if is_jitted else f

    x = np.array([1.0, 2.0])
    with jax.enable_x64(True):
        np.testing.assert_allclose(function_of(bare)(x), x**3)
        for tesseract, endpoint in ((full, written), (full, other), (bare, written)):
            np.testing.assert_allclose(derivative_of(endpoint, function_of(tesseract), x), 15.0)
        with pytest.raises(NotImplementedError, match=f"{other}.*not implemented"):
            derivative_of(other, function_of(bare), x)


@pytest.mark.parametrize("is_jitted", [False, True])
@pytest.mark.parametrize("written", list(ENDPOINTS))
def test_nothing_is_derived_under_jax(written, is_jitted, tmp_path):
    source = tmp_path / "tesseract_api.py"
    source.write_text(ONE_ENDPOINT + ENDPOINTS[written])
    full = tc.Tesseract.from_tesseract_api(source)
    check_nothing_is_derived(full, written, is_jitted=is_jitted)


def test_nothing_is_derived_under_jax_from_a_component_in_another_process(tmp_path):
    written = "vector_jacobian_product"
    source = tmp_path / "tesseract_api.py"
    source.write_text(ONE_ENDPOINT + ENDPOINTS[written])
    with tc.Tesseract.from_source(source, python_executable=sys.executable) as full:
        check_nothing_is_derived(full, written, is_jitted=True)


def test_jax_does_not_derive_what_the_author_of_a_jax_component_left_out(tmp_path):
    source = tmp_path / "tesseract_api.py"
    written = ENDPOINTS["vector_jacobian_product"]
    source.write_text(
        "import jax.numpy as jnp\n"
        + ONE_ENDPOINT.replace("inputs.x**3", "jnp.asarray(inputs.x)**3")
        + written
    )
    bare = tc.Tesseract.from_tesseract_api(source).with_derived_endpoints(False)
    with jax.enable_x64(True):
        f = lambda x: apply_tesseract(bare, {"x": x})["y"]  # noqa: E731
        x = jnp.array([1.0, 2.0])
        np.testing.assert_allclose(jax.jit(jax.grad(lambda x: jnp.sum(f(x))))(x), 3 * x**2)
        with pytest.raises(NotImplementedError, match=r"jacobian_vector_product.*not implemented"):
            jax.jvp(f, (x,), (x,))
