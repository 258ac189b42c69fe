"""What an array field accepts, what comes out, and the reason when it is refused."""

import pickle
from ctypes import c_double

import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from chainrule._codec import BinrefArray
from chainrule._describe import describe_value
from chainrule.runtime import (
    Array,
    BFloat16,
    Bool,
    Complex64,
    Complex128,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)


def accept(annotation, value, **context):
    model = create_model("Model", field=(annotation, ...))
    return model.model_validate({"field": value}, context=context or None).field


def refuse(annotation, value, **context):
    model = create_model("Model", field=(annotation, ...))
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"field": value}, context=context or None)
    (error,) = caught.value.errors()
    assert error["loc"] == ("field",)
    return error


def encoded(array, dtype=None):
    return {
        "object_type": "array",
        "shape": list(np.shape(array)),
        "dtype": dtype or np.asarray(array).dtype.name,
        "data": {"buffer": np.asarray(array).tolist(), "encoding": "json"},
    }


SCALARS = [
    (Float16, np.float16), (Float32, np.float32), (Float64, np.float64), (Int8, np.int8),
    (Int16, np.int16), (Int32, np.int32), (Int64, np.int64), (UInt8, np.uint8),
    (UInt16, np.uint16), (UInt32, np.uint32), (UInt64, np.uint64), (Complex64, np.complex64),
    (Complex128, np.complex128),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "scalar_type"), SCALARS)
@pytest.mark.parametrize("value", [1, np.int8(1), np.array(1, np.uint8), True, encoded(1)])
def test_scalars_are_numpy_scalars_of_the_declared_dtype(annotation, scalar_type, value):
    result = accept(annotation, value)
    assert type(result) is scalar_type
    assert result == 1
    assert result.shape == ()


def test_booleans():
    assert type(accept(Bool, True)) is np.bool_
    assert accept(Array[(2,), Bool], [True, False]).tolist() == [True, False]
    assert refuse(Bool, 1)["type"] == "array_dtype_mismatch"


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    result = accept(Array[(None,), BFloat16], [1.5, 3])
    assert result.dtype == ml_dtypes.bfloat16
    assert result.astype(float).tolist() == [1.5, 3.0]
    assert type(accept(BFloat16, 0.5)) is ml_dtypes.bfloat16
    assert accept(Float32, ml_dtypes.bfloat16(2)) == 2.0
    assert refuse(Int8, ml_dtypes.bfloat16(2))["type"] == "array_dtype_mismatch"


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6, dtype=">f8").reshape(2, 3),
        [[0, 1, 2], [3, 4, 5]],
        ((0.0, 1, 2), (3, 4, 5)),
        [np.arange(3.0), np.arange(3.0, 6.0)],
        encoded(np.arange(6.0).reshape(2, 3)),
        encoded(np.arange(6).reshape(2, 3)),
        np.ma.masked_array(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_whatever_goes_in_a_read_only_native_array_comes_out(value):
    result = accept(Array[(2, None), Float64], value)
    np.testing.assert_array_equal(result, np.arange(6.0).reshape(2, 3))
    assert type(result) is np.ndarray
    assert result.dtype.isnative
    assert result.dtype == np.float64
    assert not result.flags.writeable


def test_a_correct_array_is_shared_not_copied_and_its_owner_may_still_write():
    mine = np.zeros(3)
    theirs = accept(Array[(3,), Float64], mine)
    mine[0] = 7.0
    assert theirs[0] == 7.0
    with pytest.raises(ValueError, match="read-only"):
        theirs[0] = 1.0


def test_jax_arrays_are_read_without_copy_and_tracers_pass_through():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    result = accept(Array[(3,), Float32], jnp.ones(3, jnp.float32))
    assert type(result) is np.ndarray

    model = create_model("Model", field=(Array[("n",), Float32], ...))
    seen = []

    def traced(x):
        seen.append(model(field=x).field)
        return 2.0 * seen[-1]

    np.testing.assert_array_equal(jax.jit(traced)(jnp.ones(2, jnp.int8)), [2.0, 2.0])
    assert seen[0].dtype == np.float32
    with pytest.raises(ValidationError, match="array_dimensionality_mismatch"):
        jax.eval_shape(traced, jnp.ones((2, 2)))


class OnDevice:
    """Stands for an array on a GPU: all that validation may look at."""

    shape, dtype = (2,), "float32"
    __cuda_array_interface__ = {"typestr": "<f4", "shape": (2,)}  # noqa: RUF012


def test_an_array_on_a_device_stays_there_and_must_be_exact():
    value = OnDevice()
    assert accept(Array[(2,), Float32], value) is value
    assert refuse(Array[(2,), Float64], value)["type"] == "array_dtype_mismatch"
    assert refuse(Array[(3,), Float32], value)["type"] == "array_shape_mismatch"


def test_an_array_in_a_file_stays_there_and_must_be_exact(tmp_path):
    np.ones(2).tofile(tmp_path / "x.bin")
    value = BinrefArray.from_file("x.bin", (2,), "float64", folder=tmp_path)
    assert accept(Array[(2,), Float64], value) is value
    assert refuse(Array[(2,), Float32], value)["type"] == "array_dtype_mismatch"
    assert refuse(Array[(1,), Float64], value)["type"] == "array_shape_mismatch"


# Shapes


@pytest.mark.parametrize(
    ("shape", "given", "result"),
    [
        ((3,), (1,), (3,)),
        ((2, None), (1, 4), (2, 4)),
        ((None,), (0,), (0,)),
        ((0, 3), (0, 3), (0, 3)),
        ((0, 3), (0, 1), (0, 3)),
        ((1,), (1,), (1,)),
        (..., (2, 0, 1), (2, 0, 1)),
    ],
)
def test_sizes_agree_or_broadcast(shape, given, result):
    value = np.ones(given)
    for form in (value, value.tolist(), encoded(value)):
        if np.shape(form) != given and not isinstance(form, dict):
            continue  # a list cannot say (0, 3)
        assert accept(Array[shape, Float64], form).shape == result


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, encoded])
@pytest.mark.parametrize(
    ("shape", "given", "kind"),
    [
        ((3,), (2,), "array_shape_mismatch"),
        ((0,), (1,), "array_shape_mismatch"),
        ((1,), (3,), "array_shape_mismatch"),
        ((3,), (3, 1), "array_dimensionality_mismatch"),
        ((), (1,), "array_dimensionality_mismatch"),
        ((3, 3), (3,), "array_dimensionality_mismatch"),
    ],
)
def test_a_wrong_shape_says_both_shapes(shape, given, kind, form):
    error = refuse(Array[shape, Float64], form(np.ones(given)))
    assert error["type"] == kind
    assert f"f64[{','.join(map(str, shape))}]" in error["msg"]
    assert f"f64[{','.join(map(str, given))}]" in error["msg"]


def test_an_any_rank_scalar_is_a_scalar():
    assert type(accept(Array[..., Float64], 2)) is np.float64
    assert type(accept(Array[..., None], True)) is np.bool_


# Dtypes and values

GENERALITY = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


@pytest.mark.parametrize(("target", "target_type"), SCALARS)
@pytest.mark.parametrize("source_type", [np.bool_, *(kind for _, kind in SCALARS)])
def test_a_cast_goes_towards_equal_or_greater_generality(target, target_type, source_type):
    value = np.ones(2, source_type)
    allowed = GENERALITY[value.dtype.kind] <= GENERALITY[np.dtype(target_type).kind]
    if allowed:
        result = accept(Array[(2,), target], value)
        assert result.dtype == target_type
        assert result.tolist() == [1, 1]
    else:
        error = refuse(Array[(2,), target], value)
        assert error["type"] == "array_dtype_mismatch"
        assert error["ctx"] == {
            "actual_dtype": value.dtype.name, "expected_dtype": np.dtype(target_type).name,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Int8, 128),
        (Int8, np.int64(-129)),
        (UInt8, -1),
        (UInt64, np.int8(-1)),
        (Int64, np.uint64(2**63)),
        (Int32, 2**70),
        (Float32, 1e300),
        (Float16, 70000),
        (Float16, np.int32(70000)),
        (Complex64, 1e300),
        (Complex64, complex(0, 1e300)),
        (Float64, np.int64(2**53 + 1)),
        (Float64, np.int64(-(2**53) - 1)),
        (Float64, np.uint64(2**64 - 1)),
        (Float32, np.array(2**24 + 1)),
        (Complex64, np.array(2**24 + 1)),
    ],
)
def test_no_value_is_lost_silently(annotation, value):
    error = refuse(annotation, value)
    assert error["type"] == "array_value_out_of_range"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Int8, np.int64(-128)),
        (UInt64, np.uint64(2**64 - 1)),
        (Int64, np.uint64(2**63 - 1)),
        (Float64, np.int64(2**53)),
        (Float64, np.int64(-(2**63))),
        (Float64, np.int64(3 * 2**60)),
        (Float32, np.int64(-(2**24))),
        (Float32, float("inf")),
        (Float16, np.float64("-inf")),
    ],
)
def test_what_fits_exactly_is_taken(annotation, value):
    assert accept(annotation, value) == value


def test_nan_passes_through_floats_and_not_into_integers():
    assert np.isnan(accept(Float32, float("nan")))
    assert refuse(Int32, float("nan"))["type"] == "array_dtype_mismatch"
    assert refuse(Array[(2,), Int32], [1, float("nan")])["type"] == "array_dtype_mismatch"
    assert refuse(Int32, encoded(np.nan, "int32"))["type"].startswith("array_")


def test_numbers_that_are_written_out_are_rounded_like_floats():
    # A JSON client cannot say whether 16777217 is meant as an integer.
    assert accept(Float32, 2**24 + 1) == np.float32(2**24 + 1)
    assert accept(Array[(1,), Float64], [2**53 + 1])[0] == float(2**53 + 1)


def test_an_empty_list_has_no_dtype():
    assert accept(Array[(None,), Int32], []).dtype == np.int32
    assert refuse(Array[(None,), Int32], np.zeros(0))["type"] == "array_dtype_mismatch"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "text"),
        (None, "null"),
        ([1, None], "null"),
        ([1, "2"], "text"),
        ([[1], [2, 3]], "unequal lengths"),
        ({"a": 1}, "keys shape, dtype, data"),
        ({"shape": [1], "dtype": "float64"}, "key data"),
        (object(), "object"),
        (np.array(["2020-01-01"], "datetime64[D]"), "datetime64"),
    ],
)
def test_what_is_not_numbers_says_what_it_is(value, reason):
    error = refuse(Array[..., Float64], value)
    assert error["type"] == "array_non_numeric"
    assert reason in error["msg"]


@pytest.mark.parametrize("nest", [lambda a: a, lambda a: [a], lambda a: [[0.0, 0.0], a]])
def test_masked_entries_have_no_value(nest):
    error = refuse(Array[..., Float64], nest(np.ma.masked_array([1.0, 2.0], [True, False])))
    assert error["type"] == "array_masked"
    assert "array.filled(value)" in error["msg"]


def test_lists_nested_a_thousand_deep():
    value = 1.0
    for _ in range(1000):
        value = [value]
    error = refuse(Array[..., Float64], value)
    assert error["type"] == "array_non_numeric"
    assert "nested deeper" in error["msg"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"dtype": "float65"}, "array_invalid_dtype"),
        ({"dtype": 3}, "array_invalid_dtype"),
        ({"shape": [3]}, "array_shape_mismatch"),
        ({"shape": [2, 1]}, "array_dimensionality_mismatch"),
        ({"shape": [-2]}, "array_shape_mismatch"),
        ({"shape": "2"}, "array_decode_error"),
        ({"shape": [10**30]}, "array_shape_mismatch"),
        ({"extra": 1}, "array_decode_error"),
        ({"data": 3}, "array_decode_error"),
        ({"data": {"buffer": [1, 2], "encoding": "raw"}}, "array_decode_error"),
        ({"data": {"buffer": "!!!!", "encoding": "base64"}}, "array_decode_error"),
        ({"data": {"buffer": "AAAA", "encoding": "base64"}}, "array_decode_error"),
        ({"data": {"buffer": [1, 2, 3], "encoding": "json"}}, "array_decode_error"),
        ({"data": {"buffer": "x.bin", "encoding": "binref"}}, "array_decode_error"),
    ],
)
def test_a_bad_encoded_array_gives_the_real_reason(change, kind):
    error = refuse(Array[(2,), Float64], {**encoded(np.ones(2)), **change})
    assert error["type"] == kind


def test_a_huge_open_size_is_refused_before_it_is_allocated():
    huge = {**encoded(np.ones(2)), "shape": [10**15]}
    assert refuse(Array[(None,), Float64], huge)["ctx"]["code"] == "array_too_large"


def test_messages_never_carry_data():
    for value in ([123456.789, 1.0], [123456, 1], [10**123456 % 123456**9, 1], ["123456", 1]):
        error = refuse(Array[(2,), Int8], value)
        assert "123456" not in error["msg"] + str(error["ctx"])


def test_strict_contexts():
    exact = np.ones(3, np.float32)
    assert accept(Array[(3,), Float32], exact, strict_shapes=True, strict_types=True) is not None
    wrong_dtype = refuse(Array[(3,), Float32], np.ones(3), strict_types=True)
    assert wrong_dtype["type"] == "array_dtype_mismatch"
    wrong_shape = refuse(Array[(3,), Float32], exact[:1], strict_shapes=True)
    assert wrong_shape["type"] == "array_shape_mismatch"
    assert refuse(Array[(3,), Float32], encoded(exact[:1]), strict_shapes=True)


# The model around it


def test_a_union_prefers_the_member_that_fits_as_it_is():
    either = Array[(3,), Float32] | Array[(3,), Float64] | Array[(3, 3), Float64]
    assert accept(either, np.ones(3)).dtype == np.float64
    assert accept(either, np.ones(3, np.float32)).dtype == np.float32
    assert accept(either, np.ones((1, 3))).shape == (3, 3)
    assert accept(either, encoded(np.ones(3))).dtype == np.float64
    assert accept(either, [1, 2, 3]).dtype == np.float32
    assert accept(Float64 | str, "text") == "text"
    either = Array[(2,), Float64] | Array[(2,), Int32]
    assert accept(either, np.array([1, 2], ">i4")).dtype == np.int32
    assert accept(Float64 | None, None) is None


def test_the_type_object_is_the_declared_one_whatever_the_platform_calls_it():
    # On Linux `long long` and `long` are both int64, with two scalar types.
    assert type(accept(Int64, np.longlong(3))) is np.int64
    assert type(accept(UInt64, 2**64 - 1)) is np.uint64
    assert accept(Array[(1,), Int64], np.ones(1, np.longlong)).dtype is np.dtype("int64")
    swapped = accept(Array[(2,), Float64], np.array([1.0, 2.0], ">f8"))
    assert swapped.dtype is np.dtype("float64")
    assert swapped.tolist() == [1.0, 2.0]


def test_arrays_whose_dtype_is_an_object_of_its_own_are_accepted_as_they_are():
    for array in (pickle.loads(pickle.dumps(np.ones(2))), np.ctypeslib.as_array((c_double * 2)())):
        assert array.dtype is not np.dtype("float64")
        assert accept(Array[(2,), Float64], array).tolist() == array.tolist()
        with pytest.raises(ValidationError, match=r"f64\[2\]"):
            accept(Array[(3,), Float64], array)
        with pytest.raises(ValidationError, match="int64"):
            accept(Array[(2,), Int64], array)


def test_an_unfit_union_names_each_member_and_its_reason():
    adapter = TypeAdapter(Array[(3,), Float32] | Array[(3, 3), Float64])
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(np.ones((3, 4)))
    first, second = caught.value.errors()
    assert first["loc"] == ("f32[3]",)
    assert first["type"] == "array_dimensionality_mismatch"
    assert second["loc"] == ("f64[3,3]",)
    assert second["type"] == "array_shape_mismatch"


def test_strict_models_refuse_casts_of_stored_arrays_only():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        field: Array[(2,), Float64]

    assert Strict(field=[1, 2]).field.dtype == np.float64
    with pytest.raises(ValidationError, match="array_dtype_mismatch"):
        Strict(field=np.ones(2, np.float32))


def test_json_text_may_hold_lists_and_encoded_arrays():
    model = create_model("Model", field=(Array[(2,), Float64], ...))
    assert model.model_validate_json('{"field": [1, 2.5]}').field.tolist() == [1.0, 2.5]
    text = model(field=[1, 2]).model_dump_json(context={"array_encoding": "base64"})
    assert model.model_validate_json(text).field.tolist() == [1.0, 2.0]


def test_ten_thousand_fields():
    model = create_model("Wide", x=(dict[str, Array[(1,), Float64]], ...))
    values = {f"naïve {i}": np.ones(1) for i in range(10_000)}
    assert len(model(x=values).x) == 10_000
    values["naïve 77"] = np.ones(2)
    with pytest.raises(ValidationError) as caught:
        model(x=values)
    assert caught.value.errors()[0]["loc"] == ("x", "naïve 77")


class Tensor:
    """Looks like one of torch, whose import takes seconds."""

    __module__ = "torch"
    shape, dtype = (3,), "torch.float32"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        (1, "an int"),
        ([], "a list"),
        (np.ones((2, 3)), "a NumPy array f64[2,3]"),
        (np.float32(1), "a NumPy array f32[]"),
        (jnp.ones(3, jnp.float32), "a JAX array f32[3]"),
        (Tensor(), "a torch tensor f32[3]"),
        (ValueError("data"), "a ValueError"),
        (OSError("data"), "an OSError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_people_call_a_value(value, words):
    assert describe_value(value) == words
