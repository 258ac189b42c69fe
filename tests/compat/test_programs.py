"""Programs written for the ancestors run unchanged on our packages and on the real ones: equal results.

Every side runs in a fresh process, ours after `compat.Installation` has given the names a meaning.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chainrule.compat import pcx as px

HERE = Path(__file__).parent
# Programs are run once: compiling them well would take most of the time.
QUICKLY = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
# ancestor: modules, variables, programs
ANCESTORS = {
    "tesseract": (
        ("tesseract_core", "tesseract_jax"),
        {"JAX_ENABLE_X64": "1"},
        (
            "use_tesseract_core.py",
            "use_runtime.py",
            "use_runtime_outside.py",
            "use_tesseract_jax.py",
        ),
    ),
    "pcx": (
        ("pcx",),
        {},
        (
            "use_pcx.py",
            "use_pcx_scan.py",
            "use_pcx_more.py",
            "use_pcx_details.py",
            "use_pcx_images.py",
            "use_pcx_lessons.py",
        ),
    ),
    "graphax": (("graphax",), {}, ("use_graphax.py",)),
}
PROGRAMS = [(who, program) for who in ("tesseract", "pcx") for program in ANCESTORS[who][2]]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A function that gives the results of an ancestor's programs on one side, and their folder."""
    found = {}

    def run(who, side):
        names, variables, programs = ANCESTORS[who]
        if (who, side) not in found:
            folder = tmp_path_factory.mktemp(f"{who}_{side}")
            paths = [str(HERE / "programs" / program) for program in programs]
            subprocess.run(
                [sys.executable, str(HERE / "run_programs.py"), side, ",".join(names), str(folder), *paths],
                check=True,
                capture_output=True,
                timeout=900,
                env={**os.environ, **QUICKLY, **variables},
            )  # fmt: skip
            found[who, side] = pickle.loads((folder / "results.pickle").read_bytes()), folder
        return found[who, side]

    return run


def assert_equal(here, there, where=""):
    if isinstance(there, dict):
        assert set(here) == set(there), where
        for key in there:
            assert_equal(here[key], there[key], f"{where}.{key}")
    elif isinstance(there, list):
        assert len(here) == len(there), where
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            assert_equal(one, other, f"{where}[{number}]")
    elif hasattr(there, "dtype"):
        assert (here.shape, here.dtype) == (there.shape, there.dtype), where
        np.testing.assert_allclose(here, there, rtol=2e-5, atol=1e-6, err_msg=where)
    else:
        assert here == there, where


@pytest.mark.interop
@pytest.mark.parametrize(("who", "program"), PROGRAMS)
def test_program(who, program, results):
    for name in ANCESTORS[who][0]:
        pytest.importorskip(name)
    (here, _), (there, _) = results(who, "here"), results(who, "there")
    assert_equal(here[program], there[program])


@pytest.mark.interop
@pytest.mark.parametrize("writer", ["here", "there"])
def test_checkpoints_go_both_ways(writer, results, tmp_path):
    """What one side has written, the other reads."""
    pytest.importorskip("pcx")
    found, folder = results("pcx", writer)
    saved, file = found["use_pcx.py"]["predictive_coding"]["saved"], folder / "use_pcx" / "model"
    layers = [px.nn.Linear(4, 6), px.nn.Linear(6, 3)]
    holder = px.Module()
    holder.layers = layers
    if writer == "there":
        px.utils.load_params(holder, str(file))
        np.testing.assert_array_equal(layers[0].nn.weight.get(), saved[".layers[0].nn.weight"])
        np.testing.assert_array_equal(layers[1].nn.bias.get(), saved[".layers[1].nn.bias"])
        return
    reader = (
        "import sys, numpy as np, pcx as px, pcx.nn as pxnn, pcx.utils as pxu\n"
        "model = px.Module()\n"
        "model.layers = [pxnn.Linear(4, 6), pxnn.Linear(6, 3)]\n"
        "pxu.load_params(model, sys.argv[1])\n"
        "np.save(sys.argv[2], model.layers[0].nn.weight.get())\n"
    )
    target = tmp_path / "weight.npy"
    subprocess.run([sys.executable, "-c", reader, str(file), str(target)], check=True, timeout=600)
    np.testing.assert_array_equal(np.load(target), saved[".layers[0].nn.weight"])


READS_SHARED = """
import sys, pcx.nn as pxnn, pcx.utils as pxu
first = pxnn.Linear(2, 3)
pxu.load_params([first, pxnn.shared(first)], sys.argv[1])
print(first.nn.weight.get().tolist())
"""


@pytest.mark.interop
def test_the_ancestor_reads_shared_weights(tmp_path):
    pytest.importorskip("pcx")
    first = px.nn.Linear(2, 3)
    px.utils.save_params([first, px.nn.shared(first)], str(tmp_path / "m"))
    run = subprocess.run(
        [sys.executable, "-c", READS_SHARED, str(tmp_path / "m")],
        check=True, timeout=600, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout.strip() == str(first.nn.weight.get().tolist())


def test_programs_of_graphax_agree_with_jax_and_with_the_published_counts(results):
    found, _ = results("graphax", "here")
    assert found["use_graphax.py"] == {
        "orders": [True] * 6,
        "transformed": [True, True],
        # multiplications and additions of reverse mode; vertex 100 is the last that is eliminated
        "counted": [[[[]] * 6] * 3, 364, 135, [100, 2]],
        "with_values": [True, 2, 2],
        "of_a_jaxpr": ["list", True],
        "refused": True,
    }
