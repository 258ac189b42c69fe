"""Schemas and paths that a program uses itself, outside of a component, as unit tests of authors do."""

import json
import os
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel
from tesseract_core.runtime import Array, Differentiable, Float64
from tesseract_core.runtime.config import update_config
from tesseract_core.runtime.experimental import InputPath, LazySequence, OutputPath
from tesseract_core.runtime.tree_transforms import filter_func, get_at_path, set_at_path


def outcome(call):
    """What a call gives, or the class of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def says(call, text):
    try:
        call()
    except Exception as error:
        return text in str(error)


def must_be_text(path):
    if path.suffix != ".txt":
        raise ValueError("no text")
    return path


class Files(BaseModel):
    read: InputPath


class Texts(BaseModel):
    read: Annotated[InputPath, AfterValidator(must_be_text)]


class Written(BaseModel):
    path: OutputPath


class Many(BaseModel):
    items: LazySequence[Array[(2,), Float64]]


class Vector(BaseModel):
    x: Array[(3,), Float64]


UNCHECKED = {"skip_path_checks": True}


class Plain:
    def __init__(self, **parts):
        self.__dict__.update(parts)


def encoded(**data):
    return {"object_type": "array", "shape": [3], "dtype": "float64", "data": data}


def files(folder):
    given, made = folder / "in", folder / "out"
    given.mkdir()
    made.mkdir()
    for path in (given / "a.txt", given / "c.csv", made / "b.txt", folder / "secret"):
        path.write_text("")
    (given / "x.bin").write_bytes(np.arange(3.0).tobytes())
    for i in range(2):
        (given / f"s{i}.json").write_text(
            json.dumps({**encoded(encoding="json", buffer=[i, i]), "shape": [2]})
        )
    update_config(input_path=str(given), output_path=str(made))
    before = os.getcwd()
    os.chdir("/")
    try:
        return {
            "given": Files(read="a.txt").read == given / "a.txt",
            "missing": outcome(lambda: Files(read="nothing")),
            "outside": outcome(lambda: Files(read="../secret")),
            "checked": outcome(lambda: Texts(read="c.csv")),
            "written": Written(path="b.txt").path == made / "b.txt",
            "dumped": Written(path=made / "b.txt").model_dump_json(),
            "elsewhere": outcome(lambda: Written(path=folder / "secret")),
            "lazy": list(Many(items=f"@{given}/s*.json").items),
            "binref": Vector(x=encoded(encoding="binref", buffer="x.bin:0")).x,
            "there and back": there_and_back(made),
            "of the wrong name": outcome(lambda: there_and_back(made, array_encoding="xml")),
            "in a folder": there_and_back(made, binref_dir="arrays"),
            "folders": [path.name for path in made.iterdir() if path.is_dir()],
            "not there yet": Files.model_validate({"read": "new"}, context=UNCHECKED).read
            == given / "new",
            "written later": Written.model_validate({"path": "new"}, context=UNCHECKED).path
            == made / "new",
            "never": outcome(lambda: Files.model_validate({"read": "../new"}, context=UNCHECKED)),
        }
    finally:
        os.chdir(before)
        update_config(input_path=before, output_path=before)


def there_and_back(folder, **options):
    context = {"array_encoding": "binref", "base_dir": str(folder), **options}
    text = Vector(x=np.arange(3.0)).model_dump_json(context=context)
    return Vector.model_validate(json.loads(text), context={"base_dir": str(folder)}).x


def types():
    marked, plain = Differentiable[Array[(2, None), Float64]], Array[..., Float64]
    strict = {"strict_types": True, "strict_shapes": True}
    return [
        [int(flag) for flag in marked.flags],
        [int(flag) for flag in plain.flags],
        list(marked.expected_shape),
        marked.expected_dtype,
        says(
            lambda: Vector.model_validate({"x": np.float32([1, 2, 3])}, context=strict),
            "no casting",
        ),
        says(lambda: Vector.model_validate({"x": np.ones(1)}, context=strict), "no broadcasting"),
    ]


PATHS = ["a.b.[1]", "d.{k}", "a.c", "a.b.[5]", "d.{z}", "a..b", "[0]", "a.b.x", "{a}", "a.b.[x]"]


def paths():
    plain = Plain(a=Plain(b=[1, 2]), d={"k": 3})
    nested = {"a": {"b": [1, 2]}, "d": {"k": 3}}
    changed = set_at_path(plain, {"a.b.[0]": 7})

    def double(tree):
        return {"y": 2 * tree["x"], "z": tree["x"]}

    by_name, by_place = (
        filter_func(double, {"x": 1.0}, {"y"}),
        filter_func(double, {"x": 1.0}, {"y"}, ["x"]),
    )
    return {
        "of objects": [outcome(lambda p=p: get_at_path(plain, p)) for p in PATHS],
        "of dictionaries": [outcome(lambda p=p: get_at_path(nested, p)) for p in PATHS],
        "set": [outcome(lambda p=p: set_at_path(nested, {p: 0})) for p in PATHS],
        "copied": [changed.a.b, plain.a.b, changed.d is plain.d],
        "invalid": says(lambda: get_at_path(nested, "a.[x]"), "Invalid path"),
        "empty": says(lambda: set_at_path(nested, {"": 0}), "Invalid path"),
        "filtered": [by_name({"x": 3.0}), by_place(3.0)],
        "refused": [
            outcome(lambda: by_name(3.0)),
            outcome(lambda: by_name({"x": 1.0}, {"x": 2.0})),
            outcome(lambda: by_place(1.0, 2.0)),
            outcome(lambda: filter_func(double, {"x": 1.0}, {"q"})({"x": 1.0})),
        ],
    }


def main(folder):
    return {"files": files(folder), "types": types(), "paths": paths()}
