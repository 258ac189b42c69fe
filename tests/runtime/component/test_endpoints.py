"""What goes into an endpoint, what comes out, and who is to blame when it does not fit."""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field, RootModel, computed_field, field_validator

from chainrule._endpoints import ENDPOINTS
from chainrule.errors import (
    CapabilityError,
    ComponentError,
    DefinitionError,
    InputError,
    PathError,
)
from chainrule.runtime import (
    Array,
    Differentiable,
    Float32,
    Float64,
    Int32,
    Limits,
    LocalComponent,
    component,
    load_component,
)
from chainrule.runtime.internal import Run

Vector = Array[(None,), Float64]


class Part(BaseModel):
    weight: Differentiable[Vector]
    label: str = "none"


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]
    k: Differentiable[Float32] = 2.0
    maybe: Differentiable[Vector] | None = None
    parts: list[Part] = []
    table: dict[str, Differentiable[Vector]] = {}
    pair: tuple[Differentiable[Float64], Vector] | None = None
    mode: Literal["plain", "fancy"] = "plain"
    count: Int32 = 3


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]
    total: Differentiable[Float64]
    note: str = "fine"


def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y=inputs.k * inputs.x, total=inputs.x.sum())


def jacobian(inputs, jac_inputs, jac_outputs):
    n = inputs.x.size
    blocks = {
        ("y", "x"): inputs.k * np.eye(n),
        ("y", "k"): inputs.x,
        ("total", "x"): np.ones(n),
        ("total", "k"): 0.0,
    }
    return {o: {i: blocks[o, i] for i in jac_inputs} for o in jac_outputs}


def make(functions=None, inputs=InputSchema, outputs=OutputSchema, config=None):
    functions = {"apply": apply, **(functions or {})}
    module = ModuleType("probe")
    vars(module).update(InputSchema=inputs, OutputSchema=outputs, **functions)
    return load_component(module, config=config)


@pytest.mark.parametrize("kind", ENDPOINTS.values(), ids=list(ENDPOINTS))
def test_methods_take_what_requests_carry(kind):
    parameters = inspect.signature(getattr(LocalComponent, kind.endpoint)).parameters
    names = {name.removeprefix("abstract_") for name in parameters} - {"self", "run_id"}
    assert names == {*kind.argument_names, *kind.optional_names}


def test_apply_returns_a_plain_tree():
    result = make().apply({"x": [1, 2]})
    assert isinstance(result, dict)
    assert result["note"] == "fine"
    np.testing.assert_array_equal(result["y"], [2.0, 4.0])
    assert result["total"] == 3.0
    assert isinstance(result["total"], np.float64)


def test_author_sees_their_own_class_and_own_arrays():
    seen = []

    def look(inputs):
        seen.append(inputs)
        return {"y": inputs.x, "total": 0}

    make({"apply": look}).apply({"x": np.ones(3)})
    (inputs,) = seen
    assert isinstance(inputs, InputSchema)
    assert inputs.x.flags.writeable
    assert inputs.x.flags.owndata
    assert isinstance(inputs.k, np.float32)
    assert isinstance(inputs.count, np.int32)


def test_no_file_is_made(tmp_path):
    component = make(config={"output_path": tmp_path / "out"})
    component.apply({"x": np.arange(1e5)})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make_result", [dict, OutputSchema])
def test_an_array_is_copied_once_each_way(make_result):
    seen = []

    def same(inputs):
        seen.append(inputs.x)
        return make_result(y=inputs.x, total=0.0)

    x = np.arange(1e5)
    component = make({"apply": same})
    copied = component.apply({"x": x})["y"]
    lent = component.call("apply", {"inputs": {"x": x}}, copy_results=False)["y"]
    assert not np.shares_memory(seen[0], x)
    assert not np.shares_memory(seen[0], copied)
    assert np.shares_memory(seen[1], lent)
    assert copied.flags.writeable
    assert x.flags.writeable


def test_validators_of_the_author_run_once_on_the_way_in():
    count = []

    class Checked(BaseModel):
        x: Vector

        @field_validator("x")
        @classmethod
        def watch(cls, value):
            count.append(1)
            return value

    component = make({"apply": lambda i: i}, inputs=Checked, outputs=Checked)
    component.apply({"x": [1.0]})
    assert len(count) == 2  # once as input, once as output


def test_models_are_taken_as_inputs_too():
    result = make().apply(InputSchema(x=[1.0], parts=[Part(weight=[1.0])]))
    assert result["total"] == 1.0
    nested = make().apply({"x": [1.0], "parts": [Part(weight=[1.0])]})
    assert nested["total"] == 1.0


def test_rich_outputs_become_json_values():
    class Inner(BaseModel):
        root_path: Path = Path("/tmp/x")
        flags: set[int] = {1}

    class Rich(BaseModel):
        inner: Inner = Inner()
        pair: tuple[int, Vector] = (1, [2.0])
        names: dict[int, str] = {1: "one"}

        @computed_field
        def doubled(self) -> int:
            return 2

    result = make({"apply": lambda i: {}}, outputs=Rich).apply({"x": [1.0]})
    assert result["inner"] == {"root_path": "/tmp/x", "flags": [1]}
    assert result["names"] == {"1": "one"}
    assert result["doubled"] == 2
    assert result["pair"][0] == 1
    np.testing.assert_array_equal(result["pair"][1], [2.0])


def test_root_models():
    class Root(RootModel[dict[str, Vector]]):
        pass

    component = make(
        {"apply": lambda i: {k: 2 * v for k, v in i.root.items()}}, inputs=Root, outputs=Root
    )
    np.testing.assert_array_equal(component.apply({"a": [1.0]})["a"], [2.0])
    np.testing.assert_array_equal(component.apply(Root({"a": [1.0]}))["a"], [2.0])
    same = make({"apply": lambda i: Root(i.root)}, inputs=Root, outputs=Root)
    np.testing.assert_array_equal(same.apply({"a": [1.0]})["a"], [1.0])
    assert "Apply_InputSchema" in component.openapi_schema["components"]["schemas"]


@pytest.mark.parametrize(
    ("inputs", "code", "path"),
    [
        ({"x": "abc"}, "array_non_numeric", "x"),
        ({"x": [[1.0]]}, "array_dimensionality_mismatch", "x"),
        ({"x": [1.0], "k": [1.0, 2.0]}, "array_dimensionality_mismatch", "k"),
        ({"x": [1.0], "count": 2**40}, "array_value_out_of_range", "count"),
        ({"x": [1.0], "nonsense": 1}, "invalid_input", "nonsense"),
        ({}, "invalid_input", "x"),
        ({"x": [1.0], "parts": [{"weight": [1.0], "wait": 2}]}, "invalid_input", "parts.[0].wait"),
        ({"x": [1.0], "mode": "odd"}, "invalid_input", "mode"),
        (None, "invalid_input", ""),
        (3, "invalid_input", ""),
    ],
)
def test_bad_inputs_are_the_callers_fault(inputs, code, path):
    with pytest.raises(InputError) as caught:
        make().apply(inputs)
    error = caught.value
    assert (error.code, error.path, error.exit_code) == (code, path, 2)
    assert error.details["problems"][0]["loc"][0] == "inputs"


class Cat(BaseModel):
    kind: Literal["cat"]
    weight: Vector


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Pets(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    either: int | Vector = 0


@pytest.mark.parametrize(
    ("pets", "either", "path"),
    [
        ({"kind": "cat", "weight": "much"}, 0, "pets.[0].weight"),
        ({"kind": "cat"}, 0, "pets.[0].weight"),
        ({"kind": "dog", "name": "a", "tail": 1}, 0, "pets.[0].tail"),
        ({"kind": "cow"}, 0, "pets.[0]"),
        ({"kind": "dog", "name": "a"}, "text", "either"),
    ],
)
def test_paths_are_those_of_the_data_inside_unions_too(pets, either, path):
    with pytest.raises(InputError) as caught:
        make(inputs=Pets).apply({"pets": [pets], "either": either})
    assert caught.value.path == path


def test_paths_of_models_that_the_author_builds():
    def build(inputs):
        return Pets.model_validate({"pets": [{"kind": "cat", "weight": "much"}]})

    with pytest.raises(ComponentError) as caught:
        make({"apply": build}, outputs=Pets).apply({"x": [1.0]})
    assert caught.value.path == "pets.[0].cat.weight"


def test_errors_never_echo_data_and_stay_small():
    with pytest.raises(InputError) as caught:
        make().apply({"x": [1.0], **{f"field_{k}": 123456789.0 for k in range(1000)}})
    assert caught.value.details["count"] == 1000
    assert len(caught.value.details["problems"]) == 20
    assert "123456789" not in repr(caught.value.details)
    assert "and 999 more" in str(caught.value)


def test_limits_and_grants_reach_the_decoder(tmp_path):
    encoded = {
        "shape": [10],
        "dtype": "float64",
        "data": {"encoding": "base64", "buffer": "A" * 108},
    }
    small = make(config={"limits": Limits(max_array_bytes=8)})
    with pytest.raises(InputError) as caught:
        small.apply({"x": encoded})
    assert caught.value.code == "array_too_large"
    binref = {"shape": [1], "dtype": "float64", "data": {"encoding": "binref", "buffer": "a.bin"}}
    with pytest.raises(InputError) as caught:
        make().apply({"x": binref})
    assert caught.value.code == "path_not_granted"
    (tmp_path / "a.bin").write_bytes(np.float64(7).tobytes())
    granted = make(config={"input_path": tmp_path})
    assert granted.apply({"x": binref})["total"] == 7.0


def test_payloads_have_exactly_their_fields():
    component = make({"jacobian": jacobian})
    for payload, code in [
        ({}, "missing_field"),
        ({"inputs": {"x": [1.0]}, "more": 1}, "unknown_field"),
        ([], "invalid_input"),
    ]:
        with pytest.raises(InputError) as caught:
            component.call("apply", payload)
        assert caught.value.code == code
    with pytest.raises(InputError, match="vjp_outputs"):
        component.call("vector_jacobian_product", {"inputs": {"x": [1.0]}, "vjp_inputs": ["x"]})


def test_endpoints_that_are_not_there():
    component = make()
    with pytest.raises(CapabilityError) as caught:
        component.jacobian({"x": [1.0]}, ["x"], ["y"])
    assert caught.value.code == "endpoint_missing"
    assert component.capabilities["jacobian"].status == "absent"
    assert component.call("health", {}) == component.health() == {"status": "ok"}


@pytest.mark.parametrize(
    ("function", "code", "fragment"),
    [
        (lambda i: {"y": [1.0], "total": "much"}, "bad_output", "total"),
        (lambda i: {"y": [[1.0]], "total": 0}, "bad_output", "y"),
        (lambda i: {"y": [1j], "total": 0}, "bad_output", "y"),
        (lambda i: {"y": [1.0], "total": 0, "extra": 1}, "bad_output", "extra"),
        (lambda i: {"total": 0}, "bad_output", "y"),
        (lambda i: None, "bad_output", "returned None"),
        (lambda i: 3, "bad_output", "OutputSchema"),
        (lambda i: OutputSchema(y="no", total=0), "bad_output", "y"),
        (lambda i: OutputSchema.model_construct(y="no", total=0), "bad_output", "y"),
        (lambda i: {}[3], "component_failed", "KeyError"),
        (lambda i: exec("raise ValueError('mesh is empty')"), "component_failed", "mesh is empty"),
        (lambda i: exec("raise SystemExit(7)"), "component_exited", "7"),
    ],
)
def test_bad_results_are_the_components_fault(function, code, fragment):
    with pytest.raises(ComponentError) as caught:
        make({"apply": function}).apply({"x": [1.0]})
    assert (caught.value.code, caught.value.exit_code) == (code, 1)
    assert fragment in str(caught.value)


def test_authors_can_blame_the_caller():
    def picky(inputs):
        raise InputError("x has to be increasing", code="not_increasing")

    with pytest.raises(InputError) as caught:
        make({"apply": picky}).apply({"x": [1.0]})
    assert caught.value.code == "not_increasing"


def test_an_inner_components_refusal_is_not_the_callers_fault():
    inner = make()

    def outer(inputs):
        return inner.apply({"x": "nonsense"})

    with pytest.raises(ComponentError) as caught:
        make({"apply": outer}).apply({"x": [1.0]})
    assert caught.value.code == "inner_call_refused"
    assert isinstance(caught.value.__cause__, InputError)


def test_unknown_batching():
    def same(x: float) -> float:
        return x

    with pytest.raises(DefinitionError) as caught:
        component(batching="sideways")(same)
    assert caught.value.code == "bad_batching"


def test_the_authors_exception_is_the_cause():
    def fail(inputs):
        raise ZeroDivisionError("by zero")

    with pytest.raises(ComponentError) as caught:
        make({"apply": fail}).apply({"x": [1.0]})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.details["exception"] == "ZeroDivisionError"


def test_callers_containers_are_not_shared_with_the_author():
    def meddle(inputs):
        inputs.parts.append("more")
        inputs.table["new"] = 1
        return {"y": inputs.x, "total": 0}

    inputs = {"x": [1.0], "parts": [], "table": {}}
    make({"apply": meddle}).apply(inputs)
    assert inputs == {"x": [1.0], "parts": [], "table": {}}


def test_derivative_requests():
    component = make({"jacobian": jacobian})
    x = {"x": np.array([1.0, 2.0]), "k": 3.0}
    blocks = component.jacobian(x, ["x", "k", "x"], {"y", "total"})
    np.testing.assert_array_equal(blocks["y"]["x"], 3 * np.eye(2))
    np.testing.assert_array_equal(blocks["total"]["x"], [1.0, 1.0])
    assert list(blocks["y"]) == ["x", "k"]
    tangent = component.jacobian_vector_product(x, ["x"], ["y"], {"x": [1, 0]})
    np.testing.assert_array_equal(tangent["y"], [3.0, 0.0])
    pulled = component.vector_jacobian_product(x, ["k"], ["y"], {"y": [1.0, 1.0]})
    assert pulled["k"] == 3.0
    assert pulled["k"].dtype == np.float32  # the input's own dtype


@pytest.mark.parametrize(
    ("paths", "error", "code"),
    [
        (["nowhere"], PathError, "path_not_differentiable"),
        (["count"], PathError, "path_not_differentiable"),
        (["parts.[0].label"], PathError, "path_not_differentiable"),
        (["maybe"], PathError, "path_is_none"),
        (["parts.[4].weight"], PathError, "path_unknown"),
        (["table.{absent}"], PathError, "path_unknown"),
        (["pair.[1]"], PathError, "path_not_differentiable"),
        (["x..y"], PathError, "path_malformed"),
        ([], InputError, "bad_paths"),
        ("x", InputError, "bad_paths"),
        ([3], InputError, "bad_paths"),
        ([["x"]], InputError, "bad_paths"),
    ],
)
def test_bad_paths(paths, error, code):
    component = make({"jacobian": jacobian})
    with pytest.raises(error) as caught:
        component.jacobian({"x": [1.0], "parts": [{"weight": [1.0]}]}, paths, ["y"])
    assert caught.value.code == code
    assert caught.value.exit_code == 2


def test_paths_into_containers():
    def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
        from chainrule._trees import get_at_path

        return {path: np.zeros(np.shape(get_at_path(inputs, path))) for path in vjp_inputs}

    component = make({"vector_jacobian_product": vjp})
    inputs = {
        "x": [1.0],
        "parts": [{"weight": [1.0, 2.0]}],
        "table": {"a.b": [1.0, 2.0, 3.0]},
        "pair": [1.0, [2.0]],
    }
    paths = ["parts.[0].weight", "table.{a.b}", "pair.[0]"]
    result = component.vector_jacobian_product(inputs, paths, ["total"], {"total": 1.0})
    assert [np.shape(result[path]) for path in paths] == [(2,), (3,), ()]


def test_a_key_without_braces_is_told_how_to_write_it():
    component = make({"jacobian": jacobian})
    inputs = {"x": [1.0], "table": {"a": [1.0]}}
    with pytest.raises(PathError, match=r"stand in braces: table\.\{a\}\.") as caught:
        component.jacobian(inputs, ["table.a"], ["y"])
    assert caught.value.code == "path_not_differentiable"
    with pytest.raises(PathError) as caught:
        component.jacobian(inputs, ["table.{a.b}.c"], ["y"])
    assert "braces" not in str(caught.value)


class Either(InputSchema):
    x: Differentiable[Array[("n",), Float64]] | str


def test_a_member_of_a_union_that_is_no_array_cannot_vary():
    component = make({"jacobian": jacobian}, inputs=Either)
    with pytest.raises(PathError, match="'x' is a str in these inputs") as caught:
        component.jacobian({"x": "text"}, ["x"], ["y"])
    assert caught.value.code == "path_not_differentiable"


@pytest.mark.parametrize(
    ("vector", "code"),
    [
        ({"x": [1.0, 2.0, 3.0]}, "array_shape_mismatch"),
        ({"x": [[1.0, 2.0]]}, "array_dimensionality_mismatch"),
        ({"x": "text"}, "array_non_numeric"),
        ({"x": [1j, 2j]}, "array_dtype_mismatch"),
        ({}, "vector_keys_mismatch"),
        ({"x": [1.0, 2.0], "k": 1.0}, "vector_keys_mismatch"),
        ([1.0, 2.0], "vector_keys_mismatch"),
        ({"x": {"shape": [2], "dtype": "float64", "data": {"encoding": "odd", "buffer": 1}}},
         "array_decode_error"),
    ],
)  # fmt: skip
def test_bad_tangents(vector, code):
    component = make({"jacobian": jacobian})
    with pytest.raises(InputError) as caught:
        component.jacobian_vector_product({"x": [1.0, 2.0]}, ["x"], ["y"], vector)
    assert caught.value.code == code
    assert caught.value.path in ("x", "tangent_vector")


def test_encoded_tangents():
    component = make({"jacobian": jacobian})
    from chainrule._codec import encode_array

    encoded = encode_array(np.array([1.0, 0.0]), encoding="base64")
    x = {"x": [1.0, 2.0]}
    result = component.jacobian_vector_product(x, ["x"], ["total"], {"x": encoded})
    assert result["total"] == 1.0
    small = encode_array(np.array([1.0]), encoding="base64")
    with pytest.raises(InputError) as caught:
        component.jacobian_vector_product(x, ["x"], ["total"], {"x": small})
    assert caught.value.code == "array_shape_mismatch"


@pytest.mark.parametrize(
    ("result", "fragment"),
    [
        (None, "returned None"),
        ({}, "missing ['y']"),
        ({"y": {"x": np.eye(2)}, "z": {}}, "unexpected ['z']"),
        ({"y": np.eye(2)}, "expected a dict"),
        ({"y": {}}, "missing ['x']"),
        ({"y": {"x": np.eye(3)}}, "f64[3,3]"),
        ({"y": {"x": np.ones(2)}}, "f64[2]"),
        ({"y": {"x": "text"}}, "numbers"),
        ({"y": {"x": np.ones((1, 2))[None]}}, "3"),
    ],
)
def test_bad_derivatives_are_the_components_fault(result, fragment):
    component = make({"jacobian": lambda inputs, jac_inputs, jac_outputs: result})
    with pytest.raises(ComponentError) as caught:
        component.jacobian({"x": [1.0, 2.0]}, ["x"], ["y"])
    assert caught.value.code == "bad_output"
    assert fragment in str(caught.value)


def test_sparse_blocks_pass_and_are_checked():
    from chainrule.runtime import SparseArray

    good = SparseArray((2, 2), [[0, 0], [1, 1]], [1.0, 2.0])
    component = make({"jacobian": lambda inputs, jac_inputs, jac_outputs: {"y": {"x": good}}})
    block = component.jacobian({"x": [1.0, 2.0]}, ["x"], ["y"])["y"]["x"]
    np.testing.assert_array_equal(block.todense(), good.todense())
    with pytest.raises(ComponentError, match="sparse block"):
        component.jacobian({"x": [1.0, 2.0, 3.0]}, ["x"], ["y"])


def test_named_dimensions_hold_between_inputs_and_outputs():
    component = make({"apply": lambda i: {"y": [1.0, 2.0, 3.0], "total": 0}})
    with pytest.raises(ComponentError, match="'n'"):
        component.apply({"x": [1.0, 2.0]})


def test_abstract_evaluation():
    def abstract_eval(abstract_inputs):
        assert abstract_inputs.mode == "fancy"
        return {"y": abstract_inputs.x, "total": {"shape": [], "dtype": "float64"}}

    component = make({"abstract_eval": abstract_eval})
    x = {"shape": [4], "dtype": "float64"}
    result = component.abstract_eval({"x": x, "mode": "fancy"})
    assert result["y"] == {"shape": [4], "dtype": "float64"}
    assert result["note"] == "fine"
    with pytest.raises(InputError) as caught:
        component.abstract_eval({"x": {"shape": [4, 4], "dtype": "float64"}})
    assert caught.value.code == "array_dimensionality_mismatch"


@pytest.mark.parametrize("shape", [[4], (4,), [np.int64(4)], (np.int32(4),)])
@pytest.mark.parametrize("dtype", ["float64", np.float64, np.dtype("float64")])
def test_sizes_and_dtypes_of_numpy_in_abstract_inputs(shape, dtype):
    component = make(
        {"abstract_eval": lambda abstract_inputs: {"y": abstract_inputs.x, "total": 0.0}}
    )
    result = component.abstract_eval({"x": {"shape": shape, "dtype": dtype}})
    assert result["y"] == {"shape": [4], "dtype": "float64"}


def test_abstract_defaults_are_shapes():
    class WithDefault(BaseModel):
        x: Vector = Field(default_factory=lambda: np.zeros(3))
        k: Array[(2,), Float32] = [1.0, 2.0]
        several: list[Vector] = []
        maybe: Vector | None = None

    seen = []

    def abstract_eval(abstract_inputs):
        seen.append(abstract_inputs)
        return {"y": abstract_inputs.k, "total": abstract_inputs.k}

    class Out(BaseModel):
        y: Array[(2,), Float32]
        total: Array[(2,), Float32]

    component = make({"abstract_eval": abstract_eval}, inputs=WithDefault, outputs=Out)
    component.abstract_eval({"x": {"shape": [3], "dtype": "float64"}})
    component.abstract_eval({})
    assert (seen[0].k.shape, seen[0].k.dtype) == ((2,), "float32")
    assert (seen[1].x.shape, seen[1].several, seen[1].maybe) == ((3,), [], None)


def test_derivatives_without_differentiable_fields_are_refused():
    class Plain(BaseModel):
        x: Vector

    with pytest.raises(DefinitionError) as caught:
        make({"jacobian": jacobian}, inputs=Plain)
    assert caught.value.code == "nothing_differentiable"


def test_extra_fields_where_the_author_allows_them():
    class Open(BaseModel, extra="allow"):
        x: Vector

    component = make({"apply": lambda i: {"x": i.x, "more": i.more}}, inputs=Open, outputs=Open)
    assert component.apply({"x": [1.0], "more": "yes"})["more"] == "yes"
    same = make({"apply": lambda i: Open(x=i.x, more=i.more)}, inputs=Open, outputs=Open)
    assert same.apply(Open(x=[1.0], more="yes"))["more"] == "yes"


def test_profile_and_trace_are_log_records(caplog):
    component = make(config={"profiling": True, "tracing": True})
    with caplog.at_level("INFO", "chainrule.runtime"):
        component.apply({"x": np.arange(100.0)})
    assert "--- Profiling Statistics ---" in caplog.text
    assert '"shape": [100]' in caplog.text
    assert "99.0" not in caplog.text


def test_components_do_not_share_settings(tmp_path):
    first = make(config={"output_path": tmp_path / "a"})
    second = first.configured(name="other")
    assert (first.name, second.name) == ("probe", "other")
    assert second.config.output_path == first.config.output_path
    with pytest.raises(InputError) as caught:
        make(config={"colour": "red"})
    assert caught.value.code == "unknown_setting"
    with pytest.raises(InputError) as caught:
        make(config={"output_format": "xml"})
    assert caught.value.code == "bad_setting"


def test_calls_of_calls_keep_their_own_folder(tmp_path):
    inner = make({"apply": lambda i: {"y": i.x, "total": len(str(Run.current().config.output_path))}},
                 config={"output_path": tmp_path / "inner"})  # fmt: skip

    def outer(inputs):
        before = Run.current()
        inner.apply({"x": [1.0]})
        assert Run.current() is before
        assert before.config.output_path == tmp_path / "outer"
        return {"y": inputs.x, "total": 0}

    make({"apply": outer}, config={"output_path": tmp_path / "outer"}).apply({"x": [1.0]})
    assert Run.current() is None
