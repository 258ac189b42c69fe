"""The demo runs from start to end, and its parts are right."""

import json
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from tests.view.pages import data_of

from chainrule.runtime import load_component
from chainrule.runtime.testing import check_gradients

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"


def test_demo_checks_its_gradient_improves_the_board_and_leaves_a_report(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--steps", "3", "--output", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"gradient +(\S+) by the chain rule, (\S+) by differences", done.stdout)
    chain, differences = map(float, found.groups())
    assert chain == pytest.approx(differences, rel=1e-5)
    start, end = re.search(r"cost +(\S+) → (\S+) in 3 steps", done.stdout).groups()
    assert float(end) < float(start)
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2  # the plot on a light page and on a dark one
    frames = [data_of(unescape(text)) for text in re.findall(r'<iframe srcdoc="([^"]*)"', page)]
    run, pipeline = frames
    assert [frame["step"] for frame in run["frames"]] == [0, 1, 2, 3]
    assert {"conductivity", "temperature"} == set(run["frames"][0]["fields"])
    assert float(start) == pytest.approx(run["frames"][0]["cost"], rel=1e-3)
    boxes = {node["name"]: " ".join(node["lines"]) for node in pipeline["nodes"]}
    assert "http://127.0.0.1" in boxes["layout"]
    assert ", vjp " in boxes["heat"]
    assert "apply_component(programs.heat" in page
    commands = os.path.relpath(Path(sys.executable).parent, ROOT)
    assert f"{commands}/chainrule serve examples/demo" in unescape(page)
    assert not re.search(r"(src|href)=.http", page)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_compiled_program_and_its_twin_agree(tmp_path):
    source = DEMO / "reliability" / "reliability.c"
    program = tmp_path / "reliability"
    subprocess.run(["cc", "-O2", str(source), "-o", str(program), "-lm"], check=True)
    given = tmp_path / "in.json"
    given.write_text(json.dumps({"temperatures": [300.0, 350.5, 400.0]}))
    twin = [sys.executable, str(source.with_suffix(".py"))]
    answers = []
    for number, command in enumerate(([str(program)], twin)):
        answer = tmp_path / f"out{number}.json"
        subprocess.run([*command, str(given), str(answer)], check=True)
        answers.append(json.loads(answer.read_text())["rates"])
    np.testing.assert_allclose(*answers, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        (
            "layout",
            {
                "centres": [[0.3, 0.4], [0.6, 0.7]],
                "widths": [0.2, 0.3],
                "amounts": [2.0, 3.0],
                "resolution": 6,
            },
        ),
        ("heat", {"conductivity": np.random.default_rng(0).uniform(1, 2, (9, 9)).tolist()}),
    ],
)
def test_derivatives_by_hand_are_right(name, inputs):
    component = load_component(DEMO / name / "component.py")
    report = check_gradients(component, {"inputs": inputs}, rtol=1e-4, max_evals=60)
    assert report.passed, report
