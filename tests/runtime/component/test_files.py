"""Paths, required files, lazy sequences, references and arrays in files."""

import json
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from pydantic import AfterValidator, BaseModel

from chainrule.errors import (
    CapabilityError,
    ChainruleError,
    ComponentError,
    InputError,
    NotGrantedError,
)
from chainrule.runtime import Array, Float64, component, load_component
from chainrule.runtime import experimental as ours
from chainrule.runtime.experimental import (
    BinrefArray,
    BinrefWriter,
    ComponentReference,
    InputPath,
    LazySequence,
    OutputPath,
    require_file,
)
from chainrule.runtime.internal import Run

Vector = Array[(None,), Float64]


def test_the_peers_names_are_all_there():
    from tesseract_core.runtime import experimental as theirs

    names = [*theirs.__all__, "SKIP_REQUIRED_FILE_CHECK"]
    assert [name for name in names if not hasattr(ours, name)] == []
    with pytest.raises(AttributeError):
        ours.nonsense


class Files(BaseModel):
    path: InputPath
    checked: Annotated[InputPath, AfterValidator(lambda p: p if p.is_absolute() else 1 / 0)] = None


@component
def read(files: Files) -> str:
    return files.path.read_text() if files.path.is_file() else "folder"


def test_input_paths_stay_inside(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("hello")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret.txt")
    reader = load_component(read, config={"input_path": folder})
    assert reader.apply({"path": "a.txt", "checked": "a.txt"}) == {"result": "hello"}
    assert reader.apply({"path": str(folder / "a.txt")}) == {"result": "hello"}
    assert reader.apply({"path": Path(".")}) == {"result": "folder"}
    for bad in (
        "../secret.txt",
        "link",
        str(tmp_path / "secret.txt"),
        "/etc/passwd",
        "a\0b",
        "file:///etc/passwd",
    ):
        with pytest.raises(NotGrantedError) as caught:
            reader.apply({"path": bad})
        assert (caught.value.code, caught.value.path) == ("path_not_granted", "path")
    with pytest.raises(InputError) as caught:
        reader.apply({"path": "missing.txt"})
    assert caught.value.code == "file_missing"
    with pytest.raises(NotGrantedError):  # no folder is granted by default
        read.apply({"path": "a.txt"})


class Written(BaseModel):
    file: OutputPath


def test_output_paths_are_relative_to_the_output_folder(tmp_path):
    @component(config={"output_path": tmp_path})
    def write(name: str, text: str) -> Written:
        target = Run.current().config.output_path / "result.txt"
        target.write_text(text)
        (tmp_path.parent / "elsewhere.txt").write_text("")
        return Written(file=name)

    assert write.apply({"name": "result.txt", "text": "hi"}) == {"file": "result.txt"}
    assert (tmp_path / "result.txt").read_text() == "hi"
    assert write.apply({"name": str(tmp_path / "result.txt"), "text": ""}) == {"file": "result.txt"}
    for bad in ("missing.txt", "../elsewhere.txt", "/etc/passwd"):
        with pytest.raises(ComponentError):
            write.apply({"name": bad, "text": "hi"})


def test_path_checks_can_be_skipped():
    context = {"skip_path_checks": True}
    assert Files.model_validate({"path": "nowhere"}, context=context).path == Path("nowhere")
    written = Written.model_validate({"file": "nowhere"}, context=context).file
    assert written == Path.cwd() / "nowhere"  # the output folder, which there always is
    schema = Files.model_json_schema()["properties"]["path"]
    assert (schema["type"], schema["format"]) == ("string", "path")


def test_required_files(tmp_path):
    (tmp_path / "mesh.vtk").write_text("mesh")
    (tmp_path / "folder").mkdir()

    @component(config={"input_path": tmp_path})
    def solve(name: str) -> str:
        return require_file(name).read_text()

    assert solve.apply({"name": "mesh.vtk"}) == {"result": "mesh"}
    for name, code in (
        ("none", "file_missing"),
        ("folder", "not_a_file"),
        ("../x", "path_not_granted"),
    ):
        with pytest.raises(ChainruleError) as caught:
            solve.apply({"name": name})
        assert caught.value.code == code


def test_required_files_at_import(tmp_path):
    file = tmp_path / "tesseract_api.py"
    file.write_text(
        """
from pydantic import BaseModel
from tesseract_core.runtime.experimental import require_file
MESH = require_file("mesh.vtk")
class InputSchema(BaseModel):
    n: int
class OutputSchema(BaseModel):
    mesh: str
def apply(inputs):
    return {"mesh": MESH.read_text()}
"""
    )
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(ChainruleError):
        load_component(file, config={"input_path": folder})
    described = load_component(file, config={"require_files": False})
    assert described.openapi_schema["info"]["title"] == tmp_path.name
    (folder / "mesh.vtk").write_text("here")
    assert load_component(file, config={"input_path": folder}).apply({"n": 1}) == {"mesh": "here"}


class Item(BaseModel):
    values: Vector


class Series(BaseModel):
    items: LazySequence[Item]


@component
def lengths(series: Series) -> list[int]:
    return [item.values.size for item in series.items]


def test_lazy_sequences_from_lists():
    assert lengths.apply({"items": [{"values": [1.0]}, {"values": [1.0, 2.0]}]}) == {
        "result": [1, 2]
    }
    series = Series(items=[{"values": [1.0]}, {"values": "bad"}])
    assert len(series.items) == 2
    assert series.items[0].values.size == 1
    with pytest.raises(ValueError, match="Expected an array of numbers"):
        series.items[1]
    with pytest.raises(TypeError):
        series.items[0:1]
    for bad in (3, "no-at-sign", {"a": 1}):
        with pytest.raises(InputError):
            lengths.apply({"items": bad})
    good = Series(items=[{"values": [1.0]}])
    assert good.model_dump(mode="json")["items"][0]["values"]["data"]["buffer"] == [1.0]
    choices = Series.model_json_schema()["properties"]["items"]["anyOf"]
    assert choices[1] == {"type": "string", "pattern": "^@"}


def test_lazy_sequences_from_files(tmp_path):
    (tmp_path / "run").mkdir()
    for k in (2, 1):
        np.arange(float(k)).tofile(tmp_path / "run" / f"data{k}.bin")
        data = {"buffer": f"data{k}.bin", "encoding": "binref"}
        values = {"shape": [k], "dtype": "float64", "data": data}
        (tmp_path / "run" / f"item{k}.json").write_text(json.dumps({"values": values}))
    reader = load_component(lengths, config={"input_path": tmp_path})
    assert reader.apply({"items": "@run/item*.json"}) == {"result": [1, 2]}
    (tmp_path / "run" / "item0.json").write_text("not json")
    with pytest.raises(InputError) as caught:
        reader.apply({"items": "@run/item*.json"})
    assert caught.value.code == "not_json"
    for bad in ("@none*", "@../*", "@/etc/*"):
        with pytest.raises(InputError):
            reader.apply({"items": bad})


class Uses(BaseModel):
    other: ComponentReference
    x: float


@component
def twice(uses: Uses) -> float:
    return uses.other.apply({"x": uses.other.apply({"x": uses.x})["result"]})["result"]


@component
def square(x: float) -> float:
    return x * x


def test_references_are_not_opened_unless_allowed(tmp_path):
    file = tmp_path / "component.py"
    file.write_text(
        "import chainrule\n@chainrule.component\ndef double(x: float) -> float:\n    return 2 * x\n"
    )
    reference = {"type": "api_path", "ref": str(file)}
    with pytest.raises(NotGrantedError) as caught:
        twice.apply({"other": reference, "x": 1.0})
    assert caught.value.code == "reference_not_granted"
    allowed = load_component(twice, config={"allow_references": ["api_path"]})
    assert allowed.apply({"other": reference, "x": 1.0}) == {"result": 4.0}
    with pytest.raises(NotGrantedError):
        allowed.apply({"other": {"type": "url", "ref": "http://127.0.0.1:1"}, "x": 1.0})
    for bad in ({"type": "odd", "ref": ""}, {"ref": "x"}, 3, {"type": "url", "ref": 3}):
        with pytest.raises(InputError):
            allowed.apply({"other": bad, "x": 1.0})
    with pytest.raises(InputError):
        load_component(twice, config={"allow_references": ["everything"]})


def test_references_that_cannot_be_opened_here(monkeypatch):
    monkeypatch.setitem(sys.modules, "chainrule.client", None)  # importing it fails
    allowed = load_component(twice, config={"allow_references": ["image"]})
    with pytest.raises(CapabilityError) as caught:
        allowed.apply({"other": {"type": "image", "ref": "solver:1"}, "x": 1.0})
    assert caught.value.code == "missing_dependency"


def test_component_objects_are_references():
    assert twice.apply({"other": square, "x": 3.0}) == {"result": 81.0}
    model = Uses(other=square, x=1.0)
    assert model.other.name == "square"
    assert model.model_dump()["other"] == {"type": "object", "ref": ""}
    schema = Uses.model_json_schema()["properties"]["other"]
    assert schema["x-tesseract-type"] == "TesseractReference"


def test_arrays_in_files(tmp_path):
    @component(config={"output_path": tmp_path})
    def big(x: Vector, compression: str | None = None) -> Vector:
        if compression is None:
            return BinrefArray.write(2 * x)
        with BinrefWriter(compression=compression) as writer:
            return writer.write(2 * x)

    result = big.apply({"x": [1.0, 2.0]})["result"]
    np.testing.assert_array_equal(result.load(), [2.0, 4.0])
    compressed = big.apply({"x": [1.0, 2.0], "compression": "lz4"})["result"]
    np.testing.assert_array_equal(compressed.load(), [2.0, 4.0])
    runs = sorted(path.name for path in tmp_path.iterdir())
    assert len(runs) == 2
    assert all(name.startswith("run_") for name in runs)


def test_existing_files_as_arrays(tmp_path):
    np.arange(4.0).tofile(tmp_path / "values.bin")

    @component(config={"output_path": tmp_path})
    def offer(name: str) -> Vector:
        return BinrefArray.from_file(name, (2,), "float64", offset=16)

    np.testing.assert_array_equal(offer.apply({"name": "values.bin"})["result"].load(), [2.0, 3.0])
    with pytest.raises(NotGrantedError):
        offer.apply({"name": "../values.bin"})
