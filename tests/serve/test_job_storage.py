"""Jobs whose files are lost, damaged, readable by others or on a full disk: each ends, and says how."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

JOB_COMPONENT = str(Path(__file__).with_name("job_component.py"))
FRAMES = "application/vnd.chainrule.frames"
LARGE = 20_000  # numbers of a body, or an answer, that gets a file of its own


@pytest.fixture(params=[0, 1], ids=["thread", "process"])
def workers(request):
    return request.param


def submit(served, **inputs):
    inputs = {"x": np.ones(2), **inputs}
    answer = served.post("/apply?wait=false", {"inputs": inputs}, format=FRAMES.split("/")[1])
    assert answer.status == 202, answer.body
    return json.loads(answer.body)["id"]


def find(served, job_id):
    return json.loads(served.get(f"/jobs/{job_id}").body)


def is_over(served, job_id):
    return find(served, job_id)["state"] in ("succeeded", "failed", "cancelled")


def test_a_request_that_disappeared_fails_its_job(start_server, tmp_path, workers, wait_until):
    folder, told = tmp_path / "jobs", tmp_path / "told"
    served = start_server(components=JOB_COMPONENT, workers=workers, jobs_folder=str(folder))
    first = submit(served, action="until_told", label=str(told))
    wait_until(lambda: find(served, first)["state"] == "running")
    lost, damaged, fine = (submit(served, x=np.ones(LARGE)) for _ in range(3))
    (folder / f"{lost}.request").unlink()
    spoil(folder / f"{damaged}.request")
    told.touch()
    wait_until(lambda: is_over(served, fine))
    for job, code in ((lost, "job_request_lost"), (damaged, "job_request_damaged")):
        assert find(served, job)["error"]["code"] == code
        assert find(served, job)["started_at"] is None
        answer = served.get(f"/jobs/{job}/result")
        assert (answer.status, answer.problem["code"]) == (507, code)
        assert served.request("DELETE", f"/jobs/{job}").status == 200  # which hung
    assert find(served, fine)["state"] == "succeeded"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a megabyte."""
    target = tmp_path / "disk"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(target)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False, timeout=300)
    except OSError:
        pytest.skip("no mount command")
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield target
    subprocess.run(["umount", "--lazy", str(target)], check=True, timeout=300)


def fill(disk):
    with open(disk / "ballast", "ab", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(1 << 12))
        except OSError:
            return


def test_a_disk_that_is_full_for_a_while(start_server, small_disk, tmp_path, workers, wait_until):
    """A job that is acknowledged ends, and its end is on disk once there is room again."""
    settings = {
        "components": JOB_COMPONENT, "workers": workers, "jobs_folder": str(small_disk / "jobs"),
    }  # fmt: skip
    served = start_server(**settings)
    told = [tmp_path / name for name in ("first", "second")]
    running = submit(served, action="until_told", label=str(told[0]))
    wait_until(lambda: find(served, running)["state"] == "running")
    waiting, given_up = submit(served, action="until_told", label=str(told[1])), submit(served)
    fill(small_disk)
    assert served.post("/apply?wait=false", {"inputs": {"x": [0.0] * LARGE}}).status == 507
    gone = json.loads(served.request("DELETE", f"/jobs/{given_up}").body)
    assert gone["state"] == "cancelled"
    for path in told:
        path.touch()
    wait_until(lambda: all(is_over(served, job) for job in (running, waiting)))
    ends = {job: find(served, job) for job in (running, waiting, given_up)}
    assert [end["state"] for end in ends.values()] == ["failed", "failed", "cancelled"]
    for job in (running, waiting):
        assert ends[job]["error"]["code"] == "storage_failed"
        assert served.get(f"/jobs/{job}/result").status == 507
    (small_disk / "ballast").unlink()
    wait_until(lambda: stored_states(small_disk / "jobs") == {"failed", "cancelled"})
    last = submit(served)
    wait_until(lambda: is_over(served, last))
    assert served.get(f"/jobs/{last}/result").status == 200
    served.process.kill()  # what the next server finds is what was on disk
    served.process.wait()
    again = start_server(**settings)
    assert {job: find(again, job) for job in ends} == ends
    served.stop()
    again.stop()


def stored_states(folder):
    with sqlite3.connect(f"file:{folder}/jobs.sqlite?mode=ro", uri=True) as database:
        found = {state for (state,) in database.execute("SELECT DISTINCT state FROM jobs")}
    database.close()
    return found


def spoil(path):
    """Change one byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    os.truncate(path, 1000)


def test_a_damaged_result_is_not_served(start_server, tmp_path, wait_until):
    """It was answered with 200, or with the words of a caller's mistake."""
    folder = tmp_path / "jobs"
    served = start_server(components=JOB_COMPONENT, workers=0, jobs_folder=str(folder))
    jobs = [submit(served, x=np.ones(LARGE)), submit(served, x=np.ones(LARGE)), submit(served)]
    wait_until(lambda: all(is_over(served, job) for job in jobs))
    for expected in (200, 507):
        for job in jobs:
            for accept in ("application/json", FRAMES):
                answer = served.get(f"/jobs/{job}/result", {"Accept": accept})
                assert answer.status == expected
                if expected == 507:
                    assert answer.problem["code"] == "job_result_damaged"
        spoil(folder / f"{jobs[0]}.result")
        cut(folder / f"{jobs[1]}.result")
        with sqlite3.connect(folder / "jobs.sqlite") as database:
            database.execute("UPDATE jobs SET result = substr(result, 2) WHERE id = ?", jobs[2:])
        database.close()
    served.stop()


def test_what_is_no_file_keeps_no_server_from_starting(start_server, tmp_path, wait_until):
    folder = tmp_path / "jobs"
    for name in ("left.request", ".left.partial"):
        (folder / name).mkdir(parents=True)
    served = start_server(components=JOB_COMPONENT, workers=0, jobs_folder=str(folder))
    job = submit(served, action="steps")
    wait_until(lambda: is_over(served, job))
    (folder / f"{job}.log").unlink(missing_ok=True)
    (folder / f"{job}.log").mkdir()
    answer = served.get(f"/jobs/{job}/log")
    assert (answer.status, answer.body) == (200, b"")
    served.stop()


def test_jobs_are_for_their_owner_only(start_server, tmp_path, wait_until):
    """Also in a folder that was there before, with files of an earlier version in it."""
    folder, told = tmp_path / "jobs", tmp_path / "told"
    folder.mkdir(mode=0o755)
    (folder / "old.result").write_bytes(b"")
    (folder / "old.result").chmod(0o644)
    served = start_server(components=JOB_COMPONENT, workers=1, jobs_folder=str(folder))
    done = submit(served, x=np.ones(LARGE), action="steps")
    wait_until(lambda: is_over(served, done))
    running = submit(served, action="until_told", label=str(told))
    wait_until(lambda: find(served, running)["state"] == "running")
    submit(served, x=np.ones(LARGE))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    kinds = {name.partition(".")[2] for name in modes}
    assert kinds >= {"request", "result", "log", "sqlite", "sqlite-wal", "sqlite-shm"}
    assert set(modes.values()) == {0o600}, modes
    told.touch()
    served.stop()
