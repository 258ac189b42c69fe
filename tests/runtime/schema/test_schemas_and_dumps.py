"""JSON schemas that real clients read, dumps, and shapes without data."""

import json

import jsonschema_rs
import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from chainrule.runtime import (
    Array,
    BFloat16,
    Bool,
    Complex64,
    Differentiable,
    Float32,
    Float64,
    Int16,
    ShapeDType,
    component,
)

DECLARED = {
    "open": ((None, 3), "float64", True),
    "scalar": ((), "float32", False),
    "flag": ((), "bool", False),
    "anything": (..., None, False),
    "fixed": ((2,), "complex64", False),
    "empty": ((0, 1), "int16", False),
}


def model_of(runtime, differentiable):
    fields = {}
    for name, (shape, dtype, is_differentiable) in DECLARED.items():
        annotation = runtime[shape, dtype]
        fields[name] = (differentiable[annotation] if is_differentiable else annotation, ...)
    return create_model("Model", **fields)


WORDING = {"description", "examples"}


def without_wording(node):
    if isinstance(node, dict):
        return {key: without_wording(part) for key, part in node.items() if key not in WORDING}
    return [without_wording(part) for part in node] if isinstance(node, list) else node


def test_the_schema_of_an_array_property_is_the_peers():
    peer = pytest.importorskip("tesseract_core.runtime")
    theirs = model_of(peer.Array, peer.Differentiable).model_json_schema()["properties"]
    ours = model_of(Array, Differentiable).model_json_schema()["properties"]
    for name in DECLARED:
        if name == "empty":  # the peer also offers to stretch 1 to 0, which would drop a value
            theirs[name]["properties"]["shape"]["prefixItems"][0] = {"const": 0, "type": "integer"}
        assert without_wording(ours[name]) == without_wording(theirs[name]), name


@pytest.mark.parametrize("encoding", ["json", "base64"])
def test_a_dump_fits_the_schema_and_reads_back(encoding):
    class Model(BaseModel):
        a: Differentiable[Array[("n", 3), Float64]]
        b: Array[("n",), Float32, "m/s"]
        c: Array[(2,), Complex64]
        d: Bool
        e: Int16 | None
        f: BFloat16

    values = Model(a=np.ones((2, 3)), b=[1, 2], c=[1, 2j], d=True, e=None, f=1.5)
    text = values.model_dump_json(context={"array_encoding": encoding})
    jsonschema_rs.validate(Model.model_json_schema(), json.loads(text))
    again = Model.model_validate_json(text)
    for name in ("a", "b", "c", "d", "f"):
        before, after = getattr(values, name), getattr(again, name)
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    schema = Model.model_json_schema()["properties"]
    assert schema["a"]["array_dims"] == ["n", None]
    assert schema["b"]["array_units"] == "m/s"


def test_a_real_peer_reads_our_dumps():
    peer = pytest.importorskip("tesseract_core.runtime")
    ours = create_model("Ours", x=(Array[(2, None), Float64], ...))
    theirs = create_model("Theirs", x=(peer.Array[(2, None), peer.Float64], ...))
    value = np.arange(6.0).reshape(2, 3)
    for encoding in ("json", "base64"):
        dumped = ours(x=value).model_dump(mode="json", context={"array_encoding": encoding})
        np.testing.assert_array_equal(theirs.model_validate(dumped).x, value)
        dumped = theirs(x=value).model_dump(mode="json", context={"array_encoding": encoding})
        np.testing.assert_array_equal(ours.model_validate(dumped).x, value)


def test_python_dumps_keep_arrays():
    model = create_model("Model", x=(Array[(None,), Float64], ...))
    values = model(x=[1, 2])
    assert values.model_dump()["x"] is values.x


def test_nan_and_infinities_survive_a_json_dump():
    model = create_model("Model", x=(Array[(None,), Float64], ...))
    text = model(x=[np.nan, np.inf, -np.inf]).model_dump_json()
    np.testing.assert_array_equal(model.model_validate_json(text).x, [np.nan, np.inf, -np.inf])


def test_array_defaults_appear_in_the_schema():
    default = np.array([1.0, 2.0])

    @component
    def total(x: Array[(2,), Float64] = default) -> float:
        return float(x.sum())

    schema = total.openapi_schema["components"]["schemas"]["Apply_InputSchema"]
    assert schema["properties"]["x"]["default"] == [1.0, 2.0]


# Shapes without data


def test_shapes_ignore_other_keys_and_read_arrays():
    encoded = {"object_type": "array", "shape": [2], "dtype": "int8", "data": {}}
    assert ShapeDType.model_validate(encoded) == ShapeDType(shape=(2,), dtype="int8")
    adapter = TypeAdapter(ShapeDType[(None,), None])
    assert adapter.validate_python(np.ones(2, np.int8)) == ShapeDType(shape=(2,), dtype="int8")
    assert adapter.validate_python([1.0, 2.0]) == ShapeDType(shape=(2,), dtype="float64")
    assert TypeAdapter(ShapeDType[(), Float32]).validate_python(2).dtype == "float32"
    jax = pytest.importorskip("jax")
    struct = jax.ShapeDtypeStruct((4,), "float32")
    assert adapter.validate_python(struct) == ShapeDType(shape=(4,), dtype="float32")


def test_a_castable_dtype_becomes_the_declared_one():
    adapter = TypeAdapter(ShapeDType[(2, None), Float64])
    assert adapter.validate_python({"shape": (2, 0), "dtype": "int8"}).dtype == "float64"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"shape": (1, 3), "dtype": "float64"}, "array_shape_mismatch"),
        ({"shape": (2,), "dtype": "float64"}, "array_dimensionality_mismatch"),
        ({"shape": (2, 3), "dtype": "complex64"}, "array_dtype_mismatch"),
        ({"shape": (2, 3), "dtype": "Float64"}, "literal_error"),
        ({"shape": (2, -3), "dtype": "float64"}, "greater_than_equal"),
    ],
)
def test_a_shape_is_held_to_the_declaration_exactly(value, kind):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ShapeDType[(2, None), Float64]).validate_python(value)
    assert caught.value.errors()[0]["type"] == kind


def test_the_schema_of_a_shape_says_shape_and_dtype():
    schema = TypeAdapter(ShapeDType[(2, None), Float64]).json_schema()
    assert schema["required"] == ["shape", "dtype"]
    dumped = TypeAdapter(ShapeDType[(2,), Float64]).dump_json(ShapeDType(shape=(2,), dtype="int8"))
    assert json.loads(dumped) == {"shape": [2], "dtype": "int8"}
