import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from chainrule import Component
from chainrule._codec import decode_array, encode_array, is_encoded_array
from chainrule.errors import ComponentError, InputError
from chainrule.runtime import Array, Float64, load_component
from chainrule.runtime.testing import RegressionSpec, find_tests, record, run_test


class Doubler:
    """Answers {"y": 2x} in float32; a negative x is the author's ValueError, wrapped."""

    available_endpoints = ("apply", "health")

    def call(self, endpoint, payload):
        if endpoint == "health":
            return {"status": "ok"}
        given = payload["inputs"]["x"]
        x = np.asarray(decode_array(given) if is_encoded_array(given) else given, np.float32)
        if (x < 0).any():
            try:
                raise ValueError("x must not be negative")
            except ValueError as error:
                raise ComponentError("the author's code failed") from error
        return {"y": 2 * x, "n": 3, "name": "double", "file": Path("out.txt")}


EXPECTED = {
    "y": {
        "object_type": "array", "shape": [2], "dtype": "float32",
        "data": {"buffer": [2.0, 4.0], "encoding": "json"},
    },
    "n": 3,
    "name": "double",
    "file": "out.txt",
}  # fmt: skip


def test_case(**changes):
    spec = {"endpoint": "apply", "payload": {"inputs": {"x": [1.0, 2.0]}}}
    return (
        spec
        | ({"expected_outputs": EXPECTED} if "expected_exception" not in changes else {})
        | changes
    )


test_case.__test__ = False


def test_passes():
    result = run_test(Doubler(), test_case())
    assert result.passed
    assert result.endpoint == "apply"


def test_plain_lists_say_nothing_about_the_dtype():
    assert run_test(Doubler(), test_case(expected_outputs=EXPECTED | {"y": [2.0, 4.0]})).passed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": EXPECTED["y"] | {"dtype": "float64"}}, r"y is f32\[2\], expected f64\[2\]"),
        ({"y": [2.0, 5.0]}, r"y differs in 1 of 2 values, first at \[1\]; largest difference 1"),
        ({"y": [2.0]}, "y is f32"),
        ({"n": 4}, "n is 3, expected 4"),
        ({"n": 3.0}, "n is 3, expected 3.0"),
        ({"more": 1}, "more is missing"),
        ({"file": "other.txt"}, "file is 'out.txt'"),
    ],
)
def test_differences_are_listed(change, message):
    import re

    result = run_test(Doubler(), test_case(expected_outputs=EXPECTED | change))
    assert result.status == "failed"
    assert re.search(message, result.message)


def test_all_differences_at_once():
    wrong = {"y": [0.0, 0.0], "n": 4, "name": "x"}
    result = run_test(Doubler(), test_case(expected_outputs=wrong))
    assert len(result.message.splitlines()) == 4
    assert "file was not expected" in result.message


def test_tolerances_and_paths_of_files():
    near = EXPECTED | {"y": [2.02, 4.0], "file": "elsewhere.txt"}
    assert not run_test(Doubler(), test_case(expected_outputs=near)).passed
    loose = test_case(expected_outputs=near, rtol=0.1, skip_output_path_checks=True)
    assert run_test(Doubler(), loose).passed


class Side(BaseModel):
    n: int
    unit: str = "m"


class Shape(BaseModel):
    sides: list[Side]
    named: dict[str, Side] = {}
    area: Array[(), Float64]
    note: str = "none"


def shape(inputs: Side) -> Shape:
    return Shape(sides=[inputs], named={"a": Side(n=1)}, area=inputs.n**2)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"sides": [{"n": 2}], "named": {"a": {"n": 1}}, "area": 4.0}, ""),
        ({"sides": [{"n": 2, "unit": "m"}], "named": {"a": {"n": 1}}, "area": 4.0}, ""),
        ({"sides": [{"n": 2}], "area": 4.0}, "named.a was not expected"),
        ({"sides": [{"n": 2}], "named": {"a": {"n": 1}}, "area": 4.0, "note": "x"}, "note is"),
        ({"sides": [{"n": 2}], "named": {"a": {"n": 1}}}, "area was not expected"),
        ({"sides": [{"n": 3}], "named": {"a": {"n": 1}}, "area": 4.0}, "n is 2, expected 3"),
    ],
)
def test_fields_with_a_default_need_not_be_expected(expected, message):
    test = {"endpoint": "apply", "payload": {"inputs": {"n": 2}}, "expected_outputs": expected}
    for component in (load_component(shape), Component.from_api(shape)):
        result = run_test(component, test)
        assert result.passed == (not message)
        assert message in result.message


NEGATIVE = {"inputs": {"x": [-1.0]}}


@pytest.mark.parametrize(
    ("expectation", "status"),
    [
        ({"expected_exception": "ValueError"}, "passed"),
        ({"expected_exception": "Exception"}, "passed"),
        ({"expected_exception": "chainrule._errors.ComponentError"}, "passed"),
        ({"expected_exception": "ValueError", "expected_exception_regex": "not be neg"}, "passed"),
        ({"expected_exception": "ValueError", "expected_exception_regex": "positive"}, "failed"),
        ({"expected_exception": "KeyError"}, "failed"),
        ({"expected_exception": "os.remove"}, "failed"),
        ({"expected_exception": "not_imported_anywhere.Error"}, "failed"),
    ],
)
def test_expected_exceptions(expectation, status):
    result = run_test(Doubler(), test_case(payload=NEGATIVE, **expectation))
    assert result.status == status


def test_unexpected_exception_is_an_error():
    result = run_test(Doubler(), test_case(payload=NEGATIVE))
    assert result.status == "error"
    assert "ValueError: x must not be negative" in result.message


def test_expected_exception_that_does_not_come():
    result = run_test(Doubler(), test_case(expected_exception="ValueError"))
    assert result.status == "failed"


def test_unknown_endpoint():
    result = run_test(Doubler(), test_case(endpoint="jacobian"))
    assert result.status == "failed"
    assert "no endpoint 'jacobian'" in result.message


@pytest.mark.parametrize(
    "spec",
    [
        {"endpoint": "apply"},
        {"endpoint": "apply", "expected_outputs": {}, "expected_exception": "ValueError"},
        {"endpoint": "apply", "expected_outputs": {}, "expected_exception_regex": "x"},
        {"endpoint": "apply", "expected_outputs": {}, "typo": 1},
    ],
)
def test_malformed_tests(spec):
    with pytest.raises(ValidationError):
        RegressionSpec.model_validate(spec)


def test_recorded_tests_pass_again(tmp_path):
    file = tmp_path / "test_cases" / "test_two.json"
    made = record(Doubler(), "apply", {"inputs": {"x": np.array([1.0, np.nan])}}, path=file)
    assert json.loads(file.read_text()) == made
    assert find_tests(tmp_path) == [file]
    assert run_test(Doubler(), file).passed


def test_recorded_exceptions_of_a_loaded_file_are_found_again(tmp_path):
    file = tmp_path / "meshes.py"
    file.write_text(
        "from chainrule.runtime import component\nclass MeshError(Exception):\n    pass\n"
        "@component\ndef solve(x: float) -> float:\n    raise MeshError('empty')\n"
    )
    made = record(load_component(f"{file}:solve"), "apply", {"inputs": {"x": 1.0}},
                  expect_exception=True)  # fmt: skip
    assert made["expected_exception"] == "meshes.MeshError"
    assert run_test(load_component(f"{file}:solve"), made).passed


def test_recorded_exceptions(tmp_path):
    made = record(Doubler(), "apply", NEGATIVE, expect_exception=True)
    assert made["expected_exception"] == "ValueError"
    assert run_test(Doubler(), made).passed


def test_a_call_that_fails_is_not_recorded_unless_that_is_expected(tmp_path):
    file = tmp_path / "test_negative.json"
    with pytest.raises(ComponentError):
        record(Doubler(), "apply", NEGATIVE, path=file)
    with pytest.raises(InputError) as caught:
        record(Doubler(), "apply", {"inputs": {"x": 1.0}}, path=file, expect_exception=True)
    assert caught.value.code == "exception_missing"
    assert not file.exists()


def test_components_without_call():
    class Plain:
        available_endpoints = ("apply",)

        def apply(self, inputs):
            return {"y": inputs["x"]}

    assert run_test(
        Plain(),
        {"endpoint": "apply", "payload": {"inputs": {"x": 1.5}}, "expected_outputs": {"y": 1.5}},
    ).passed


def test_not_a_number_equals_itself():
    class Echo:
        available_endpoints = ("apply",)

        def apply(self, inputs):
            return inputs

    def tested(result, expected):
        test = {"endpoint": "apply", "payload": {"inputs": result}, "expected_outputs": expected}
        return run_test(Echo(), test)

    nan = np.array([np.nan])
    assert tested({"y": nan}, {"y": encode_array(nan)}).passed
    assert "y has 2 items, expected 1" in tested({"y": [1, "a"]}, {"y": [1]}).message


READER = """
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float64
from tesseract_core.runtime.experimental import InputPath

class InputSchema(BaseModel):
    file: InputPath
    x: Differentiable[Float64] = 1.0

class OutputSchema(BaseModel):
    text: str
    y: Differentiable[Float64]

def apply(inputs):
    return OutputSchema(text=inputs.file.read_text(), y=inputs.x)

def jacobian(inputs, jac_inputs, jac_outputs):
    return {"y": {"x": 1.0}}
"""


@pytest.fixture
def reader(tmp_path):
    """A component that reads a file, with one in `data` and another in `other`."""
    (tmp_path / "tesseract_api.py").write_text(READER)
    for folder in ("data", "other", "test_cases"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    return load_component(tmp_path / "tesseract_api.py")


@pytest.mark.parametrize(
    ("config", "file"),
    [
        ({"input_path": "../data"}, "a.txt"),
        ({"input_path": "../data"}, "/tesseract/input_data/a.txt"),
        ({"volume_mounts": ["/x:/elsewhere", "../data:/tesseract/input_data:ro"]}, "a.txt"),
        ({"volume_mounts": ["../data:/tesseract/input_data"]}, "/tesseract/input_data/a.txt"),
    ],
)
def test_files_are_where_the_command_line_of_the_peer_mounts_them(reader, config, file, tmp_path):
    spec = {"endpoint": "apply", "payload": {"inputs": {"file": file}}, "cli_config": config}
    case = tmp_path / "test_cases" / "test_apply.json"
    case.write_text(json.dumps(spec | {"expected_outputs": {"text": "data", "y": 1.0}}))
    assert run_test(reader, case).passed
    case.write_text(json.dumps(spec | {"expected_outputs": {"text": "other", "y": 1.0}}))
    assert run_test(reader, case, input_path=tmp_path / "other").passed


@pytest.mark.parametrize("wrong", ["jac_inputs", "jac_outputs"])
def test_paths_that_do_not_exist_are_the_validation_error_of_the_peer(reader, wrong, tmp_path):
    reader = reader.configured(input_path=tmp_path / "data")
    paths = {"jac_inputs": ["x"], "jac_outputs": ["y"]}
    spec = {
        "endpoint": "jacobian",
        "payload": {"inputs": {"file": "a.txt"}, **paths, wrong: ["nothing"]},
        "expected_exception": "pydantic.ValidationError",
    }
    assert run_test(reader, spec).passed
    assert not run_test(reader, spec | {"expected_exception": "TypeError"}).passed
    assert not run_test(reader, spec | {"payload": {"inputs": {"file": "a.txt"}, **paths}}).passed
