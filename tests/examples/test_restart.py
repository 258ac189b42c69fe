"""An optimisation that is killed again and again ends as if it had not been, and repeats no evaluation."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from examples.restart import spring

HERE = Path(spring.__file__).parent
LIMIT_S = 300


@pytest.fixture
def serve(tmp_path):
    """Starts a server of the component; its jobs are those of the server before."""
    running = []

    def start(trace):
        command = [sys.executable, "-m", "chainrule", "serve", str(HERE / "spring.py"), "--json"]
        command += ["--port", "0", "--jobs-folder", str(tmp_path / "jobs")]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "EVALUATIONS": str(trace)},
        )
        running.append(process)
        return process, json.loads(process.stdout.readline())["url"]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def drive(url, checkpoint):
    command = [sys.executable, str(HERE / "optimise.py"), url, str(checkpoint)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def evaluations(trace):
    return trace.read_text().splitlines() if trace.exists() else []


def test_a_driver_that_is_killed_repeats_no_evaluation(serve, tmp_path):
    """It is killed at random evaluations, and goes on with its checkpoint, with an old one and without."""
    trace, chance = tmp_path / "trace", random.Random(6)
    server, url = serve(trace)
    old = tmp_path / "old.json"
    for kills, kind in enumerate(("none", "its own", "old")):
        machine = tmp_path / f"machine-{kills}"
        machine.mkdir()
        checkpoint = machine / "checkpoint.json"
        before = tmp_path / f"machine-{kills - 1}" / "checkpoint.json"
        given = {"its own": before, "old": old, "none": old.with_name("absent")}[kind]
        if given.exists():
            shutil.copy(given, checkpoint)
        seen = len(evaluations(trace))
        driver = drive(url, checkpoint)
        kill_at, until = seen + chance.randrange(1, 4), time.monotonic() + LIMIT_S
        while len(evaluations(trace)) < kill_at and driver.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.005)
        driver.kill()
        driver.communicate()
        if not old.exists() and checkpoint.exists():
            shutil.copy(checkpoint, old)
        if kind == "old":  # the server goes too, in order
            server.terminate()
            server.wait(LIMIT_S)
            server, url = serve(trace)
    found = json.loads(drive(url, tmp_path / "last.json").communicate(timeout=LIMIT_S)[0])
    np.testing.assert_allclose(found["x"], spring.LOADS, rtol=1e-4)
    repeated = {line: n for line, n in Counter(evaluations(trace)).items() if n > 1}
    assert repeated == {}
    # A run that nothing interrupts asks for the same points.
    alone = json.loads(drive(url, tmp_path / "alone.json").communicate(timeout=LIMIT_S)[0])
    assert alone == found
    assert Counter(evaluations(trace)).most_common(1)[0][1] == 1
    assert (
        json.loads((tmp_path / "alone.json").read_text()).keys()
        == json.loads((tmp_path / "last.json").read_text()).keys()
    )


def test_the_job_of_kubernetes():
    validate = pytest.importorskip("kubernetes_validate").validate
    job = yaml.safe_load((HERE / "optimise.yaml").read_text())
    validate(job, "1.29", strict=True)
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    # What a namespace under the Pod Security Standard "restricted" asks for.
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_script_for_slurm():
    script = HERE / "optimise.slurm"
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)
