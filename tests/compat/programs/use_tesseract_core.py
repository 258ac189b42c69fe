"""Every endpoint of a component, the errors of each kind, and its regression tests."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from tesseract_core import Tesseract

SOURCE = Path(__file__).parent / "scaling" / "tesseract_api.py"
INPUTS = {"part": {"v": np.array([0.0, 0.5, 2.0]), "s": 3.0}, "offsets": [1.0, 2]}
ABSTRACT = {
    "part": {"v": {"shape": [3], "dtype": "float64"}, "s": {"shape": [], "dtype": "float64"}}
}
WRITTEN = ["apply", "jacobian", "vector_jacobian_product", "abstract_eval", "health", "test"]


def problems(call):
    try:
        call()
    except ValidationError as error:
        return error.title, sorted((p["type"], p["loc"]) for p in error.errors())
    raise AssertionError("nothing was refused")


def kind(call):
    """The most specific builtin class of what a call raises."""
    try:
        call()
    except BaseException as error:
        return next(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins")
    return None


def from_source(folder):
    """In a process of its own, with the files of a run."""
    own = Tesseract.from_source(SOURCE, output_path=folder, python_executable=sys.executable)
    with own as scaling:
        found = scaling.apply(INPUTS, run_id="first")
        endpoints = [name for name in WRITTEN if name in scaling.available_endpoints]
    run = folder / "run_first"
    return {
        "apply": found,
        "endpoints": endpoints,
        "files": sorted(
            str(path.relative_to(run)) for path in run.rglob("*") if path.suffix != ".bin"
        ),
        "log": (run / "logs/tesseract.log").read_text(),
    }


@contextmanager
def served(folder):
    """The address of a server that another process has started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tesseract_core.runtime", "--output-path", str(folder)]
    server = subprocess.Popen(
        [*command, "serve", "--port", port],
        env={**os.environ, "TESSERACT_API_PATH": str(SOURCE)},
        stderr=subprocess.DEVNULL,
    )
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def from_url(folder):
    with served(folder) as address:
        scaling = Tesseract.from_url(address, timeout=120)
        return {
            "apply": scaling.apply(INPUTS),
            "jacobian": scaling.jacobian(INPUTS, ["part.v", "part.s"], ["y", "z"]),
            "abstract": scaling.abstract_eval(ABSTRACT),
            "health": scaling.health(),
            "endpoints": [name for name in WRITTEN if name in scaling.available_endpoints],
            "formats": scaling.server_capabilities.output_formats,
            "encoding": vars(scaling.current_encoding),
            "refused": problems(lambda: scaling.apply({"part": {"v": [[1.0]]}, "extra": 1})),
            "failed": kind(lambda: scaling.apply({"part": {"v": [1.0]}, "name": "bad"})),
        }


def main(output_path):
    scaling = Tesseract.from_tesseract_api(SOURCE, output_path=output_path)
    with scaling as entered:
        assert entered is scaling
    unserved = Tesseract.from_source(SOURCE)
    for file in sorted(SOURCE.parent.glob("test_cases/*.json")):
        scaling.test(json.loads(file.read_text()))
    wrong = {
        "endpoint": "apply",
        "payload": {"inputs": {"part": {"v": [0.0]}}},
        "expected_exception": "ValueError",
    }
    return {
        "source": from_source(output_path / "source"),
        "url": from_url(output_path / "url"),
        "apply": scaling.apply(INPUTS, run_id="first"),
        "casts": scaling.apply({"part": {"v": [1, 2]}, "count": np.int64(7)}),
        "jacobian": scaling.jacobian(INPUTS, ["part.v", "part.s"], ["y", "z"]),
        "vjp": scaling.vector_jacobian_product(
            inputs=INPUTS,
            vjp_inputs=["part.v", "offsets.[1]"],
            vjp_outputs=["y", "z"],
            cotangent_vector={"y": np.ones(3), "z": 2.0},
        ),
        "abstract": scaling.abstract_eval(ABSTRACT),
        "health": scaling.health(),
        "capabilities": scaling.server_capabilities,
        "encoding": vars(scaling.current_encoding),
        "view": vars(scaling.with_encoding(output_format="json").current_encoding),
        "refused": problems(lambda: scaling.apply({"part": {"v": [[1.0]], "s": "x"}, "extra": 1})),
        "missing": problems(lambda: scaling.apply({"count": 1})),
        "range": problems(lambda: scaling.apply({"part": {"v": [1.0]}, "count": 2**40})),
        "kinds": [
            kind(lambda: scaling.apply({"part": {"v": [1.0]}, "name": "bad"})),
            kind(lambda: Tesseract("http://localhost")),
            kind(lambda: unserved.apply(INPUTS)),
            kind(scaling.serve),
            kind(scaling.teardown),
            kind(scaling.server_logs),
            kind(scaling.container_info),
            kind(lambda: scaling.test(wrong)),
            kind(lambda: Tesseract.from_tesseract_api("/no/such/file.py")),
        ],
        "differentiable": {
            name: scaling.openapi_schema["components"]["schemas"][name]["differentiable_arrays"]
            for name in ("ApplyInputSchema", "ApplyOutputSchema")
        },
        "metrics": [
            line.split(",")[1:]
            for line in (output_path / "run_first/logs/metrics.csv").read_text().splitlines()
        ],
        "parameters": (output_path / "run_first/logs/parameters.json").read_text(),
    }
