"""Programs with input decks: templates of their files, patterns of their results."""

import sys

import numpy as np
import pytest
import yaml

from chainrule import ComponentError
from chainrule.errors import DefinitionError
from chainrule.runtime import from_command, load_component

SOLVER = """
import sys

deck = dict(line.split(" = ") for line in open("deck.inp").read().splitlines() if " = " in line)
loads = [float(word) for word in deck["loads"].split()]
k = float(deck["stiffness"])
print("converged in", deck["steps"].strip(), "steps")
with open("result.out", "w") as out:
    out.write("displacements\\n")
    for load in loads:
        out.write(f"  u = {load / k:.15E}\\n".replace("E", "D"))
    out.write("energy: %r J\\n" % sum(load**2 / k / 2 for load in loads))
np_table = [[i * k for i in range(3)] for _ in loads]
open("table.dat", "w").write("\\n".join(" ".join(map(repr, row)) for row in np_table))
"""
TEMPLATE = "! {{a comment}}\nstiffness = {stiffness:.17g}\nloads = {loads}\nsteps = {steps}\n"
INPUTS = {
    "loads": "differentiable float64[n]",
    "stiffness": "differentiable float64",
    "steps": {"type": "int", "default": 3},
}
OUTPUTS = {
    "u": "differentiable float64[n]",
    "energy": "differentiable float64",
    "steps": "float64",
    "table": "float64[n, 3]",
}
RESULTS = {
    "u": ("result.out", r"u = (\S+)"),
    "energy": {"file": "result.out", "pattern": r"^energy: (\S+)"},
    "steps": ("stdout", r"converged in (\d+)"),
    "table": "table.dat",
}


@pytest.fixture
def make(tmp_path):
    (tmp_path / "solve.py").write_text(SOLVER)

    def from_options(**options):
        given = {
            "inputs": INPUTS, "outputs": OUTPUTS, "templates": {"deck.inp": TEMPLATE},
            "results": RESULTS, "folder": tmp_path, "derivatives": "finite", **options,
        }  # fmt: skip
        return from_command([sys.executable, "{folder}/solve.py"], **given)

    return from_options


def test_values_and_differences(make):
    solver = make()
    loads = np.array([1 / 3, 2.0])
    found = solver.apply({"loads": loads, "stiffness": 4.0})
    np.testing.assert_allclose(found["u"], loads / 4, rtol=1e-15)
    assert found["energy"] == sum(loads**2) / 8
    assert found["steps"] == 3
    assert found["table"].tolist() == [[0.0, 4.0, 8.0]] * 2
    slope = solver.jacobian({"loads": loads, "stiffness": 4.0}, ["stiffness"], ["energy"])
    assert slope["energy"]["stiffness"] == pytest.approx(-sum(loads**2) / 32, rel=1e-7)


def test_the_same_in_a_file(make, tmp_path):
    described = {
        "command": [sys.executable, "{folder}/solve.py"],
        "inputs": INPUTS,
        "outputs": OUTPUTS,
        "templates": {"deck.inp": TEMPLATE},
        "results": {**RESULTS, "u": list(RESULTS["u"]), "steps": list(RESULTS["steps"])},
    }
    (tmp_path / "component.yaml").write_text(yaml.safe_dump(described))
    found = load_component(tmp_path).apply({"loads": [1.0], "stiffness": 2.0, "steps": 9})
    assert (found["u"].tolist(), found["steps"]) == ([0.5], 9)


def test_results_that_are_not_there(make):
    inputs = {"loads": [1.0, 2.0], "stiffness": 1.0}
    for path, where, code, text in (
        ("u", ("result.out", r"v = (\S+)"), "command_bad_output", "no match"),
        ("u", "absent.out", "command_no_output", "absent.out"),
        ("energy", ("result.out", r"u = (\S+)"), "command_bad_output", "one number"),
        ("u", ("result.out", r"(displacements)"), "command_bad_output", "not a number"),
        ("table", ("table.dat", r"^(\S+) "), "command_bad_output", "found 2"),
    ):
        with pytest.raises(ComponentError, match=text) as caught:
            make(results={**RESULTS, path: where}).apply(inputs)
        assert caught.value.code == code


def test_definitions_that_do_not_fit(make):
    for options, text in (
        ({"templates": {"deck.inp": "{stifness}"}}, "stifness"),
        ({"templates": {"deck.inp": "{loads"}}, "cannot be read"),
        ({"templates": {"deck.inp": "{stiffness:zz}"}}, "'zz', which is no format"),
        ({"templates": {"../deck.inp": "{loads}"}}, "files inside of the folder"),
        ({"templates": {"/tmp/deck.inp": "{loads}"}}, "files inside of the folder"),
        ({"results": {**RESULTS, "u": ("../result.out", "u")}}, "files inside of the folder"),
        ({"results": {**RESULTS, "w": "x"}}, "no output"),
        ({"results": {"u": "x"}}, "does not say where"),
        ({"results": {**RESULTS, "u": ("x", "(")}}, "regular expression"),
        ({"results": {**RESULTS, "u": 3}}, "expected a file"),
    ):
        with pytest.raises(DefinitionError, match=text) as caught:
            make(**options)
        assert caught.value.code == "bad_template"


def test_matrices_are_lines(tmp_path):
    echo = from_command(
        [sys.executable, "-c", "print(open('m.txt').read())"],
        inputs={"m": "float64[a, b]"}, outputs={"m": "float64[?, 2]"},
        templates={"m.txt": "{m:.3f}\n"}, results={"m": "stdout"}, folder=tmp_path,
    )  # fmt: skip
    assert echo.apply({"m": [[1, 2], [3, 4.0625]]})["m"].tolist() == [[1, 2], [3, 4.062]]


STDIN_PROGRAM = """
import sys

title, sizes, *rows = sys.stdin.read().splitlines()
count, load = sizes.split()
areas = [float(row) for row in rows]
assert len(areas) == int(count), rows
print("***", title)
for number, area in enumerate(areas, 1):
    print(f"{number:6d} {float(load) / area!r}")
print("VOLUME", sum(areas))
"""


def test_a_deck_on_standard_input_with_the_number_of_its_rows(tmp_path):
    (tmp_path / "truss.py").write_text(STDIN_PROGRAM)
    truss = from_command(
        [sys.executable, "{folder}/truss.py"],
        folder=tmp_path,
        inputs={
            "area": "differentiable float64[n, 1]",
            "load": {"type": "differentiable float64", "default": 10.0},
        },
        outputs={"stress": "differentiable float64[n]", "volume": "differentiable float64"},
        templates={"stdin": "a truss\n{area.size} {load}\n{area}\n"},
        results={
            "stress": ("stdout", r"^\s*\d+ (\S+)$"),
            "volume": ("stdout", r"VOLUME\s+(\S+)"),
        },
        derivatives="finite",
    )
    area = np.array([[1.0], [2.0], [4.0]])
    found = truss.apply({"area": area})
    np.testing.assert_array_equal(found["stress"], [10, 5, 2.5])
    assert found["volume"] == 7
    slope = truss.jacobian({"area": area}, ["area"], ["stress"])["stress"]["area"]
    np.testing.assert_allclose(slope[:, :, 0], np.diag([-10, -2.5, -0.625]), rtol=1e-6, atol=1e-6)
