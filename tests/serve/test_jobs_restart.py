"""An acknowledged job is never lost and never run twice, in whichever way the server ends."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from http.client import HTTPException
from pathlib import Path

import numpy as np

JOB_COMPONENT = str(Path(__file__).with_name("job_component.py"))


def job_of(answer):
    assert answer.status == 202, answer.body
    return json.loads(answer.body)["id"]


def find(served, job_id):
    answer = served.get(f"/jobs/{job_id}")
    assert answer.status == 200, f"job {job_id} is lost"
    return json.loads(answer.body)


def is_idle(served):
    counts = json.loads(served.get("/status").body)["jobs"]
    return counts["queued"] == counts["running"] == 0


def all_final(served, ids):
    return all(find(served, i)["state"] in ("succeeded", "failed", "cancelled") for i in ids)


def test_every_acknowledged_job_survives_sigkill_in_the_middle_of_200(
    start_server, tmp_path, wait_until
):
    """Four callers submit 200 jobs; the server is killed when about a third of them is done."""
    settings = {"components": JOB_COMPONENT, "workers": 2, "jobs_folder": str(tmp_path / "jobs")}
    served = start_server(**settings)
    trace = tmp_path / "trace"
    acknowledged: dict[str, int] = {}

    def caller(numbers):
        with contextlib.suppress(ConnectionError, HTTPException):
            for number in numbers:
                inputs = {
                    "x": [number],
                    "trace": str(trace),
                    "label": str(number),
                    "seconds": 0.005,
                }
                answer = served.post("/apply?wait=false", {"inputs": inputs})
                acknowledged[job_of(answer)] = number

    callers = [threading.Thread(target=caller, args=(range(k, 200, 4),)) for k in range(4)]
    for thread in callers:
        thread.start()
    wait_until(lambda: trace.exists() and trace.read_text().count("\n") >= 60)
    served.process.kill()
    served.process.wait()
    for thread in callers:
        thread.join()
    assert len(acknowledged) >= 60

    again = start_server(**settings)
    wait_until(lambda: is_idle(again))
    runs = Counter(trace.read_text().split())
    assert max(runs.values()) == 1, "something ran twice"
    states = Counter()
    for job_id, number in acknowledged.items():
        job = find(again, job_id)
        states[job["state"]] += 1
        if job["state"] == "succeeded":
            assert runs[str(number)] == 1
            answer = again.get(f"/jobs/{job_id}/result")
            np.testing.assert_array_equal(answer.tree["y"], [2.0 * number])
        else:
            assert (job["state"], job["error"]["code"]) == ("failed", "server_stopped")
            assert again.get(f"/jobs/{job_id}/result").status == 502
    assert states["succeeded"] + states["failed"] == len(acknowledged)
    assert states["failed"] <= 2, "no more than the two that were running"


def test_an_orderly_stop_keeps_what_waits(start_server, tmp_path, wait_until):
    settings = {
        "components": JOB_COMPONENT, "workers": 1, "grace_s": 0.1,
        "jobs_folder": str(tmp_path / "jobs"),
    }  # fmt: skip
    served = start_server(**settings)
    done = job_of(served.post("/apply?wait=false", {"inputs": {"x": [1.0]}}))
    wait_until(lambda: all_final(served, [done]))
    stuck = {"x": [1.0], "action": "stuck"}
    running = job_of(served.post("/apply?wait=false", {"inputs": stuck}))
    waiting = job_of(served.post("/apply?wait=false", {"inputs": {"x": [3.0]}}))
    cancelled = job_of(served.post("/apply?wait=false", {"inputs": {"x": [4.0]}}))
    served.request("DELETE", f"/jobs/{cancelled}")
    wait_until(lambda: find(served, running)["state"] == "running")
    served.stop()
    again = start_server(**settings)
    assert find(again, running)["error"]["code"] == "server_stopped"
    assert find(again, cancelled)["state"] == "cancelled"
    assert again.get(f"/jobs/{done}/result").tree["y"] == [2.0]
    wait_until(lambda: all_final(again, [waiting]))
    assert again.get(f"/jobs/{waiting}/result").tree["y"] == [6.0]


def test_a_caller_that_waits_is_sent_to_the_next_server(start_server, tmp_path, wait_until):
    """A call with a key waits behind a stuck one while the server is stopped, and is answered by the next."""
    settings = {
        "components": JOB_COMPONENT, "workers": 1, "grace_s": 0.1,
        "jobs_folder": str(tmp_path / "jobs"),
    }  # fmt: skip
    served = start_server(**settings)
    stuck = {"x": [1.0], "action": "stuck"}
    running = job_of(served.post("/apply?wait=false", {"inputs": stuck}))
    wait_until(lambda: find(served, running)["state"] == "running")
    body, headers = {"inputs": {"x": [7.0]}}, {"Idempotency-Key": "seven"}
    answers = []
    caller = threading.Thread(
        target=lambda: answers.append(served.post("/apply", body, headers=headers))
    )
    caller.start()
    wait_until(lambda: json.loads(served.get("/status").body)["jobs"]["queued"] == 1)
    served.stop()
    caller.join()
    assert (answers[0].status, answers[0].problem["code"]) == (503, "shutting_down")
    again = start_server(**settings)
    listed = json.loads(again.get("/jobs").body)["jobs"]
    assert [job["id"] for job in listed] == [running], (
        "the caller was told that its call has not begun"
    )
    assert again.post("/apply", body, headers=headers).tree["y"] == [14.0]


def test_a_job_that_is_acknowledged_and_waited_for_is_kept(start_server, tmp_path, wait_until):
    """One caller was given the id of the job, a second one waits with the same key."""
    settings = {
        "components": JOB_COMPONENT, "workers": 1, "grace_s": 0.1,
        "jobs_folder": str(tmp_path / "jobs"),
    }  # fmt: skip
    served = start_server(**settings)
    stuck = {"x": [1.0], "action": "stuck"}
    running = job_of(served.post("/apply?wait=false", {"inputs": stuck}))
    wait_until(lambda: find(served, running)["state"] == "running")
    body, answers, connections = {"inputs": {"x": [7.0]}}, {}, []
    for key in ("waits-first", "waits-second"):

        def wait(key=key):
            answers[key] = served.post("/apply", body, headers={"Idempotency-Key": key})

        connections.append(threading.Thread(target=wait))
    submit = lambda: job_of(  # noqa: E731
        served.post("/apply?wait=false", body, headers={"Idempotency-Key": "waits-second"})
    )
    second = submit()
    for thread in connections:
        thread.start()
    wait_until(lambda: json.loads(served.get("/status").body)["jobs"]["queued"] == 2)
    first = job_of(
        served.post("/apply?wait=false", body, headers={"Idempotency-Key": "waits-first"})
    )
    assert submit() == second
    served.stop()
    for thread in connections:
        thread.join()
    assert {answer.problem["code"] for answer in answers.values()} == {"job_kept"}
    again = start_server(**settings)
    wait_until(lambda: all_final(again, [first, second]))
    for key in answers:
        answer = again.post("/apply", body, headers={"Idempotency-Key": key})
        assert answer.headers["idempotency-replayed"] == "true"
        assert answer.tree["y"] == [14.0]


def test_jobs_of_a_component_that_is_gone(start_server, tmp_path, component_path):
    folder = str(tmp_path / "jobs")
    served = start_server(components=JOB_COMPONENT, workers=1, jobs_folder=folder)
    served.post("/apply?wait=false", {"inputs": {"x": [1.0], "action": "stuck"}})
    waiting = job_of(served.post("/apply?wait=false", {"inputs": {"x": [1.0]}}))
    served.process.kill()
    served.process.wait()
    again = start_server(components=component_path, workers=0, jobs_folder=folder)
    job = find(again, waiting)
    assert (job["state"], job["error"]["code"]) == ("failed", "component_missing")


def test_one_server_per_folder(start_server, tmp_path):
    settings = {"components": JOB_COMPONENT, "workers": 0, "jobs_folder": str(tmp_path / "jobs")}
    start_server(**settings)
    try:
        start_server(**settings)
    except RuntimeError:
        return
    raise AssertionError("the second server should have refused to start")


def test_results_are_kept_for_their_time_and_no_longer(start_server, tmp_path, wait_until):
    folder = tmp_path / "jobs"
    served = start_server(
        components=JOB_COMPONENT, workers=0, jobs_folder=str(folder), job_retention_s=1.0
    )
    job = job_of(served.post("/apply?wait=false", {"inputs": {"x": [1.0]}}))
    wait_until(lambda: served.get(f"/jobs/{job}/result").status == 410)
    assert served.get(f"/jobs/{job}/result").problem["code"] == "job_expired"
    assert not list(folder.glob("*.result"))
    assert not list(folder.glob("*.request"))
    wait_until(lambda: served.get(f"/jobs/{job}").status == 404)
