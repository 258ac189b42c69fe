"""Components for tests of images, and what tests of images share."""

import json
import textwrap

SQUARE = '''
"""Squares numbers."""

import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable

__version__ = "1.2.0"

class InputSchema(BaseModel):
    x: Differentiable[Array[(None,), "float64"]]

class OutputSchema(BaseModel):
    y: Differentiable[Array[(None,), "float64"]]

def apply(inputs):
    if inputs.x.size == 13:
        import os
        os._exit(3)
    return {"y": inputs.x**2}

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": 2 * inputs.x * cotangent_vector["y"]}
'''
API = SQUARE.replace("chainrule.runtime", "tesseract_core.runtime")

JAX = """
import jax
import jax.numpy as jnp
from chainrule import component
from chainrule.runtime import Array, Differentiable, Float32

@component
@jax.jit
def wave(x: Differentiable[Array[("n",), Float32]]) -> Differentiable[Array[("n",), Float32]]:
    return jnp.sin(x)
"""

# The executable needs nothing that a small Debian does not have.
COMMAND = """
name: doubling
version: 0.3.0
command: [./double, "{input}", "{output}"]
inputs: {x: "differentiable float64[n]"}
outputs: {y: "differentiable float64[n]"}
derivatives: finite
build:
  apt: [tini]
  package_data: [[factor.txt, /opt/factor.txt]]
  env: {GREETING: "cost: $5"}
  steps: ["RUN echo made > /opt/made.txt"]
  secrets: [BUILD_TOKEN]
"""
DOUBLE = """\
#!/usr/bin/env python3
import json, sys
given = json.load(open(sys.argv[1]))
x = given["x"]
values = x["data"]["buffer"] if isinstance(x, dict) else x
factor = float(open("/opt/factor.txt").read())
json.dump({"y": [factor * value for value in values]}, open(sys.argv[2], "w"))
"""
# A package that can be installed only with the token.
HELPER = """
import hashlib, os
from setuptools import setup
token = os.environ.get("BUILD_TOKEN", "")
if hashlib.sha256(token.encode()).hexdigest() != "{digest}":
    raise SystemExit("no token, no package")
setup(name="doubling-helper", version="4.5.6", py_modules=[])
"""

# An older version than the one a resolver would take.
LOCK = """
lock-version = "1.0"
created-by = "by hand"
requires-python = ">=3.8"
[[packages]]
name = "six"
version = "1.16.0"
[[packages.wheels]]
name = "six-1.16.0-py2.py3-none-any.whl"
url = "https://files.pythonhosted.org/packages/d9/5a/e7c31adbe875f2abbb91bd84cf2dc52d792b5a01506781dbcf25c91daf11/six-1.16.0-py2.py3-none-any.whl"
size = 11053
hashes = {sha256 = "8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"}
"""


def write(folder, files):
    """A component's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text).lstrip())
        if text.startswith("#!"):
            (folder / name).chmod(0o755)
    return folder


def square_files(*, expected=9.0):
    """A NumPy component with a lock file, a regression file, a payload, and what its author hides."""
    case = {
        "endpoint": "apply",
        "payload": {"inputs": {"x": [1.0, 3.0]}},
        "expected_outputs": {"y": [1.0, expected]},
    }
    return {
        "component.py": SQUARE,
        "pylock.toml": LOCK,
        "test_cases/test_apply.json": json.dumps(case),
        "point.json": json.dumps({"inputs": {"x": [1.0, 3.0]}}),
        ".env": "PASSWORD=secret",
    }


def inside(engine, image, *command):
    """What a command writes in a container of an image."""
    return engine.ask(
        "run", "--rm", "--no-healthcheck", "--entrypoint", command[0], image, *command[1:]
    )
