"""The C++ header: a program that calls a served component, and one that is a component."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import chainrule
from chainrule import ComponentError
from chainrule.runtime import from_command

INCLUDE = Path(chainrule.__file__).parent / "include"
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")

COMPONENT = """
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float32, Float64, Int64

class Mesh(BaseModel):
    points: Differentiable[Array[("n", 2), Float64]]

class InputSchema(BaseModel):
    mesh: Mesh
    scale: Differentiable[Float64] = 1.0
    label: str = "none"

class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]
    half: Array[("n",), Float32]
    count: Int64
    label: str
    odd: Float64

def apply(inputs):
    y = inputs.scale * inputs.mesh.points.sum(axis=1)
    return {"y": y, "half": y / 2, "count": y.size, "label": inputs.label, "odd": np.nan}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    w = cotangent_vector["y"]
    found = {
        "mesh.points": inputs.scale * np.stack([w, w], axis=1),
        "scale": w @ inputs.mesh.points.sum(axis=1),
    }
    return {path: found[path] for path in vjp_inputs}
"""
CALLER = r"""
#include "chainrule.hpp"
#include <iostream>

using chainrule::Array;
using chainrule::Value;

int main(int, char **argv) {
    chainrule::Component c(argv[1]);
    Value mesh{{"points", Array{{2, 2}, {1, 2, 3, 4}}}};
    Value inputs{{"mesh", mesh}, {"scale", 2.0}, {"label", "\"ü\"\n"}};
    Value out = c.apply(inputs);
    Value grad = c.vector_jacobian_product(inputs, {"mesh.points", "scale"}, {"y"},
                                           {{"y", std::vector<double>{1, 10}}});
    Value errors = Value::object();
    try {
        c.apply({{"mesh", mesh}, {"scale", "much"}});
    } catch (const chainrule::Error &e) {
        errors.add(e.code, {{"status", e.status}, {"message", e.what()}});
    }
    try {
        chainrule::Component("http://127.0.0.1:1").apply(inputs);
    } catch (const chainrule::Error &e) {
        errors.add(e.code, e.what());
    }
    std::string text;
    chainrule::detail::write(text, {{"out", out}, {"grad", grad}, {"errors", errors}}, nullptr);
    std::cout << text;
}
"""
PROGRAM = r"""
#include "chainrule.hpp"

int main(int argc, char **argv) {
    return chainrule::run(argc, argv, [](const chainrule::Value &inputs) -> chainrule::Value {
        chainrule::Array x = inputs["x"].array();
        if (x.values.empty()) throw chainrule::Error("empty", "x is empty");
        for (double &v : x.values) v *= inputs["scale"].number();
        return {{"y", x}, {"n", double(x.values.size())}};
    });
}
"""


def build(folder, name, code):
    (folder / f"{name}.cpp").write_text(code)
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", f"{name}.cpp", "-o", name],
        cwd=folder, check=True,
    )  # fmt: skip
    return str(folder / name)


def test_a_program_that_calls(tmp_path, start_server):
    (tmp_path / "mesh.py").write_text(COMPONENT)
    served = start_server(components=str(tmp_path / "mesh.py"), workers=0, port=0)
    caller = build(tmp_path, "caller", CALLER)
    done = subprocess.run([caller, served.url], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["out"]["y"] == [6.0, 14.0]
    assert found["out"]["half"] == [3.0, 7.0]
    assert found["out"]["count"] == 2
    assert found["out"]["label"] == '"ü"\n'
    assert np.isnan(found["out"]["odd"])
    assert found["grad"] == {"mesh.points": [[2.0, 2.0], [20.0, 20.0]], "scale": 73.0}
    refused, unreachable = found["errors"].values()
    assert refused["status"] == 422
    assert "scale" in refused["message"]
    assert "nothing answers" in unreachable


def test_a_program_that_is_a_component(tmp_path):
    build(tmp_path, "program", PROGRAM)
    component = from_command(
        ["./program", "{input}", "{output}"], folder=tmp_path, derivatives="finite",
        inputs={"x": "differentiable float64[n, 2]", "scale": "differentiable float64"},
        outputs={"y": "differentiable float64[n, 2]", "n": "int"},
    )  # fmt: skip
    x = np.array([[1 / 3, 2.0], [3.0, 4.0]])
    found = component.apply({"x": x, "scale": 3.0})
    np.testing.assert_array_equal(found["y"], 3.0 * x)
    assert found["n"] == 4
    slope = component.jacobian({"x": x, "scale": 3.0}, ["scale"], ["y"])["y"]["scale"]
    np.testing.assert_allclose(slope, x, rtol=1e-7)
    with pytest.raises(ComponentError, match="x is empty"):
        component.apply({"x": np.zeros((0, 2)), "scale": 3.0})
