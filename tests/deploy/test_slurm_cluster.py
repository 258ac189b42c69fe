"""The batch script on a real Slurm: a cluster of this one machine, for the time of the test."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from examples.restart import spring

from chainrule.deploy.slurm import SlurmJob, batch_script
from waiting import wait_until

pytestmark = pytest.mark.slow

COMPONENT = """
from chainrule import component

@component
def double(x: float) -> float:
    return 2 * x
"""
DRIVER = """
import json, os, sys
from chainrule.deploy.slurm import read_registry
found = [component.apply({"x": 3.0}) for component in read_registry()]
mode = oct(os.stat(os.environ["CHAINRULE_REGISTRY"]).st_mode & 0o777)
json.dump({"found": found, "mode": mode}, open(sys.argv[1], "w"))
"""
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def tool(*command, check=True):
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=check)


@pytest.fixture(scope="module")
def slurm():
    """A controller and one node, with as many cores as two small jobs need."""
    missing = [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)
    ]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    if os.getuid() != 0:
        pytest.skip("a cluster of our own needs root")
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True)
            )
        )
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(
            "SLURM_CONF", f"{folder}/slurm.conf"
        )
        _start(folder, stack)
        yield


def _start(folder, stack):
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    facts = {"host": host, "folder": folder, "ports": _free_ports()}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**facts))
    munge = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
    for command in (
        ["munged", "--force", f"--socket={folder}/munge.socket", *munge],
        ["slurmctld"],
        ["slurmd"],
    ):
        started = tool(*command, check=False)
        if started.returncode:
            pytest.skip(f"{command[0]} cannot be started here: {started.stderr[-200:]}")
        name = "munge" if command[0] == "munged" else command[0]
        stack.callback(_end, folder / f"{name}.pid")
    deadline = time.monotonic() + 600
    while tool("sinfo", "--noheader", "--format=%T", check=False).stdout.strip() != "idle":
        if time.monotonic() > deadline:
            pytest.skip(f"the node does not come up: {(folder / 'slurmd.log').read_text()[-300:]}")
        time.sleep(0.1)


def _free_ports():
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _end(pid_file):
    """End a daemon and see it gone: until then it writes into its folder."""
    deadline = time.monotonic() + 600
    with contextlib.suppress(OSError, ValueError):  # no such process (any more)
        daemon = int(pid_file.read_text())
        os.kill(daemon, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.kill(daemon, 0)
            time.sleep(0.05)


def submit(folder, script):
    """The number of the job; its output goes to a file `log`."""
    (folder / "job.sh").write_text(script)
    done = tool("sbatch", "--parsable", f"--chdir={folder}", "--output=log", str(folder / "job.sh"))
    return done.stdout.strip()


def end_of(job):
    """How a job ended."""
    facts = {}

    def has_ended():
        facts.update(facts_of(job))
        return facts["JobState"] not in ("PENDING", "RUNNING", "COMPLETING")

    wait_until(has_ended, f"the end of job {job}")
    return facts["JobState"], facts["ExitCode"]


def facts_of(job):
    words = tool("scontrol", "show", "job", job).stdout.split()
    return dict(word.partition("=")[::2] for word in words)


def test_the_restart_example_is_queued_again_and_repeats_no_evaluation(
    slurm, tmp_path, monkeypatch
):
    """Ended as before its time limit, and requeued as after a lost node."""
    source = Path(spring.__file__).read_text()
    slow = source.replace("    if ", "    import time; time.sleep(0.5)\n    if ", 1)
    assert slow != source
    (tmp_path / "spring.py").write_text(slow)
    for name in ("optimise.py", "optimise.slurm"):
        shutil.copy(Path(spring.__file__).with_name(name), tmp_path)
    trace, log = tmp_path / "trace", tmp_path / "log"
    words = ["serve", str(tmp_path / "spring.py"), "--port", "0", "--jobs-folder", "jobs", "--json"]
    server = subprocess.Popen(
        [sys.executable, "-m", "chainrule", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "EVALUATIONS": str(trace)},
    )
    try:
        url = json.loads(server.stdout.readline())["url"]
        for name, value in {
            "COMPONENT_URL": url,
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }.items():
            monkeypatch.setenv(name, value)
        job = tool(
            "sbatch",
            "--parsable",
            f"--chdir={tmp_path}",
            "--output=log",
            tmp_path / "optimise.slurm",
        ).stdout.strip()

        def evaluations():
            return trace.read_text().splitlines() if trace.exists() else []

        for restarts, command in enumerate(
            (["scancel", "--batch", "--signal=TERM"], ["scontrol", "requeue"]), 1
        ):
            seen = len(evaluations())
            wait_until(lambda seen=seen: len(evaluations()) >= seen + 2, "two evaluations")
            tool(*command, job)
            wait_until(lambda n=restarts: facts_of(job)["Restarts"] == str(n), "a restart")
            assert '"cost"' not in log.read_text(), "it was not over"
        assert end_of(job) == ("COMPLETED", "0:0"), log.read_text()
        found = json.loads(log.read_text().splitlines()[-1])
        np.testing.assert_allclose(found["x"], spring.LOADS, rtol=1e-4)
        assert len(set(evaluations())) == len(evaluations())
        assert (tmp_path / f"optimise-{job}.json").exists()
    finally:
        server.terminate()
        server.communicate()


def test_jobs_serve_and_end(slurm, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, source in ((good, COMPONENT), (bad, "raise ValueError('no licence')\n")):
        folder.mkdir()
        (folder / "component.py").write_text(source)
    (good / "driver.py").write_text(DRIVER)
    wanted = {"python": sys.executable, "time": "00:02:00", "name": "doubling"}
    run = f"{sys.executable} driver.py out.json"
    scripts = {
        good: batch_script(
            SlurmJob(component=str(good / "component.py"), servers=2, run=run, **wanted)
        ),
        bad: batch_script(SlurmJob(component=str(bad / "component.py"), **wanted)),
    }
    jobs = {folder: submit(folder, script) for folder, script in scripts.items()}
    assert end_of(jobs[good]) == ("COMPLETED", "0:0"), (good / "log").read_text()
    found = json.loads((good / "out.json").read_text())
    assert found == {"found": [{"result": 6.0}] * 2, "mode": "0o600"}
    assert end_of(jobs[bad]) == ("FAILED", "1:0")
    log = (bad / "log").read_text()
    assert "no licence" in log
    assert "ended before" in log
    # Nothing is left: no registry, no token.
    for folder, job in jobs.items():
        assert not list(folder.glob("chainrule-*.json"))
        assert not Path(f"/tmp/chainrule-{job}.token").exists()
