"""The batch script, as text and run with stand-ins for the commands of Slurm; no cluster is involved."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chainrule.cli import main
from chainrule.deploy.slurm import SlurmJob, batch_script, read_registry
from chainrule.deploy.slurm._inside import collect
from chainrule.errors import InputError

COMPONENT = """
from chainrule import component

@component
def double(x: float) -> float:
    return 2 * x
"""

# Tasks run here, one after the other started and all together; their output comes to our own.
SRUN = """#!/bin/bash
tasks=1
while [[ "$1" == --* ]]; do
    [[ "$1" == --ntasks=* ]] && tasks="${1#*=}"
    shift
done
pids=()
trap 'kill "${pids[@]}"' TERM
for ((task = 0; task < tasks; task++)); do
    SLURM_PROCID=$task SLURMD_NODENAME=127.0.0.1 "$@" &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
wait
exit $code
"""
SBCAST = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
cp --preserve "$1" "$2"
"""
SCANCEL = """#!/bin/bash
exit 1
"""
DRIVER = """
import json, os, sys
from chainrule.deploy.slurm import read_registry
found = [component.apply({"x": 3.0}) for component in read_registry()]
mode = oct(os.stat(os.environ["CHAINRULE_REGISTRY"]).st_mode & 0o777)
json.dump({"found": found, "mode": mode}, open(sys.argv[1], "w"))
"""


@pytest.fixture
def cluster(tmp_path):
    """A folder with commands as a Slurm job has them, and the variables of a job."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"srun": SRUN, "sbcast": SBCAST, "scancel": SCANCEL}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    job = f"test{os.getpid()}"
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return tmp_path, {**os.environ, "PATH": path, "SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": "1"}


def test_a_job_serves_and_a_command_uses_the_servers(cluster):
    folder, environment = cluster
    (folder / "component.py").write_text(COMPONENT)
    (folder / "driver.py").write_text(DRIVER)
    script = batch_script(
        SlurmJob(
            component=str(folder / "component.py"),
            servers=2,
            run=f"{sys.executable} driver.py out.json",
            python=sys.executable,
        )
    )
    done = subprocess.run(
        ["bash", "-s"], input=script, text=True, cwd=folder, env=environment, timeout=1200,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "out.json").read_text()) == {
        "found": [{"result": 6.0}] * 2,
        "mode": "0o600",
    }
    # Nothing is left: no registry, no token.
    assert not list(folder.glob("chainrule-*.json"))
    assert not Path(f"/tmp/chainrule-{environment['SLURM_JOB_ID']}.token").exists()


def test_a_component_that_cannot_be_served_ends_the_job(cluster):
    folder, environment = cluster
    (folder / "component.py").write_text("raise ValueError('no licence')\n")
    script = batch_script(SlurmJob(component=str(folder / "component.py"), python=sys.executable))
    done = subprocess.run(
        ["bash", "-s"], input=script, text=True, cwd=folder, env=environment, timeout=1200,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no licence" in done.stderr
    assert "ended before" in done.stderr


def test_the_script_asks_for_what_was_wanted():
    script = batch_script(
        SlurmJob(
            image="heat.sif", servers=4, cpus=2, gpus=1, memory="8G", nodes=2, time="01:00:00",
            partition="long", account="lab", name="heat", run="python train.py",
        )
    )  # fmt: skip
    directives = [
        line.removeprefix("#SBATCH --") for line in script.splitlines() if "#SBATCH" in line
    ]
    assert directives == [
        "job-name=heat", "ntasks=4", "cpus-per-task=2", "nodes=2", "gpus-per-task=1", "mem=8G",
        "time=01:00:00", "partition=long", "account=lab",
    ]  # fmt: skip
    assert (
        "apptainer exec --nv heat.sif /opt/venv/bin/python -m chainrule.deploy.slurm._inside serve"
        in script
    )
    assert "sleep" not in script  # nothing is polled
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    "wrong", [{}, {"component": "a", "servers": 0}, {"image": "a", "time": "1; rm"}]
)
def test_jobs_that_cannot_be(wrong):
    with pytest.raises(InputError):
        SlurmJob(**wrong)


def test_announcements_are_sorted_by_task_and_have_to_be_complete():
    lines = [json.dumps({"task": task, "url": f"http://n{task}:1"}) for task in (1, 0)]
    assert [server["task"] for server in collect(lines, 2)] == [0, 1]
    assert collect(lines, 3) is None


def test_a_registry_that_is_none(tmp_path, monkeypatch):
    monkeypatch.delenv("CHAINRULE_REGISTRY", raising=False)
    for file in (None, tmp_path / "missing.json"):
        with pytest.raises(InputError, match="registry"):
            read_registry(file)


def test_the_command_writes_the_script(tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        main(["deploy", "slurm", str(tmp_path), "-n", "3", "-o", str(tmp_path / "job.sh")])
    assert done.value.code == 0
    assert "--ntasks=3" in (tmp_path / "job.sh").read_text()
    assert capsys.readouterr().out.strip() == str(tmp_path / "job.sh")
