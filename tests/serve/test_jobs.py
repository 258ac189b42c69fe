"""Jobs over HTTP: submitted, followed, fetched, cancelled."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.serve._jobs._files import _Waiting

JOB_COMPONENT = str(Path(__file__).with_name("job_component.py"))
FRAMES = "application/vnd.chainrule.frames"


@pytest.fixture(scope="module", params=[0, 1], ids=["thread", "process"])
def jobs(request, start_server):
    served = start_server(components=JOB_COMPONENT, workers=request.param)
    served.workers = request.param
    return served


@pytest.fixture(scope="module")
def process_jobs(start_server):
    return start_server(components=JOB_COMPONENT, workers=1)


def submit(served, endpoint="/apply", headers=None, **inputs):
    inputs = {"x": [1.0, 2.0], **inputs}
    answer = served.post(f"{endpoint}?wait=false", {"inputs": inputs}, headers=headers)
    assert answer.status == 202, answer.body
    job = json.loads(answer.body)
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    return job


def state(served, job):
    return json.loads(served.get(f"/jobs/{job['id']}").body)


def events(served, job):
    """All events of a job until the server ends the stream."""
    with contextlib.closing(served.connect()) as connection:
        connection.request("GET", f"/jobs/{job['id']}/events")
        text = connection.getresponse().read().decode()
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_a_job_is_followed_to_its_result(jobs):
    job = submit(jobs, action="steps")
    assert job["state"] in ("queued", "running")
    seen = events(jobs, job)
    assert seen[-1][0] == "state"
    assert seen[-1][1]["state"] == "succeeded"
    fractions = [data["fraction"] for kind, data in seen if kind == "progress"]
    assert fractions == sorted(fractions)
    lines = [data["line"] for kind, data in seen if kind == "log"]
    if jobs.workers:
        assert [line for line in lines if line.startswith("step")] == [
            f"step {k}" for k in range(4)
        ]
    assert sum("residual" in line for line in lines) == 4
    assert jobs.get(f"/jobs/{job['id']}/log").body.decode().splitlines() == lines
    assert events(jobs, job)[-1][1] == seen[-1][1]
    found = state(jobs, job)
    assert (found["fraction"], found["message"], found["error"]) == (1.0, "step 3", None)
    assert found["submitted_at"] <= found["started_at"] <= found["finished_at"]


@pytest.mark.parametrize("accept", [None, "application/json", "application/json+base64", FRAMES])
def test_the_fetcher_chooses_the_format(jobs, accept):
    job = submit(jobs, x=[1.0, -np.pi, 1e300])
    events(jobs, job)
    answer = jobs.get(f"/jobs/{job['id']}/result", {"Accept": accept} if accept else None)
    assert answer.status == 200
    assert answer.headers["content-type"] == (accept or "application/json")
    np.testing.assert_array_equal(answer.tree["y"], [2.0, -2 * np.pi, 2e300])


def test_large_bodies_and_answers(jobs):
    x = np.arange(200_000.0)
    answer = jobs.post("/apply?wait=false", {"inputs": {"x": x}}, format=FRAMES.split("/")[1])
    job = json.loads(answer.body)
    events(jobs, job)
    answer = jobs.get(f"/jobs/{job['id']}/result", {"Accept": FRAMES})
    np.testing.assert_array_equal(answer.tree["y"], 2 * x)


def test_every_endpoint_and_place(jobs):
    body = {"inputs": {"x": [1.0]}, "jac_inputs": ["x"], "jac_outputs": ["y"]}
    answer = jobs.post("/c/job_component/jacobian?wait=false&run_id=mine", body)
    job = json.loads(answer.body)
    assert (job["component"], job["endpoint"], job["run_id"]) == (
        "job_component",
        "jacobian",
        "mine",
    )
    events(jobs, job)
    np.testing.assert_array_equal(jobs.get(f"/jobs/{job['id']}/result").tree["y"]["x"], [[2.0]])


def test_a_result_that_is_not_there_yet(jobs, tmp_path):
    told = tmp_path / "told"
    job = submit(jobs, action="until_told", label=str(told))
    answer = jobs.get(f"/jobs/{job['id']}/result")
    assert answer.status == 202
    assert answer.headers["retry-after"] == "1"
    assert json.loads(answer.body)["id"] == job["id"]
    waiting = submit(jobs)
    assert state(jobs, waiting)["queue_position"] == 0
    assert state(jobs, waiting)["started_at"] is None
    told.touch()
    assert events(jobs, waiting)[-1][1]["state"] == "succeeded"


def test_failures_keep_their_own_status(jobs):
    job = submit(jobs, action="raise")
    final = events(jobs, job)[-1][1]
    assert final["state"] == "failed"
    assert final["error"]["code"] == "component_failed"
    assert "mesh is empty" in final["error"]["message"]
    answer = jobs.get(f"/jobs/{job['id']}/result")
    assert answer.status == 500
    assert answer.problem["exception_message"] == "mesh is empty"
    refused = submit(jobs, x="text")
    events(jobs, refused)
    assert jobs.get(f"/jobs/{refused['id']}/result").status == 422


def test_a_worker_that_dies_fails_its_job_only(process_jobs):
    job, other = submit(process_jobs, action="exit"), submit(process_jobs)
    final = events(process_jobs, job)
    assert final[-1][1]["error"]["code"] == "worker_crashed"
    assert ("log", {"line": "about to fall"}) in final
    assert process_jobs.get(f"/jobs/{job['id']}/result").status == 502
    assert events(process_jobs, other)[-1][1]["state"] == "succeeded"


def test_cancel_frees_the_only_worker_although_the_code_never_returns(process_jobs, wait_until):
    stuck = submit(process_jobs, action="stuck")
    wait_until(lambda: state(process_jobs, stuck)["state"] == "running")
    next_one = submit(process_jobs)
    answer = process_jobs.request("DELETE", f"/jobs/{stuck['id']}")
    assert (answer.status, json.loads(answer.body)["state"]) == (200, "cancelled")
    assert events(process_jobs, next_one)[-1][1]["state"] == "succeeded"
    gone = process_jobs.get(f"/jobs/{stuck['id']}/result")
    assert (gone.status, gone.problem["code"]) == (410, "job_cancelled")
    again = process_jobs.request("DELETE", f"/jobs/{stuck['id']}")
    assert (again.status, json.loads(again.body)["state"]) == (200, "cancelled")


def test_jobs_have_a_time_limit_of_their_own(start_server):
    patient = start_server(components=JOB_COMPONENT, workers=1, timeout_s=0.05)
    assert patient.post("/apply", {"inputs": {"x": [1.0], "seconds": 30.0}}).status == 504
    job = submit(patient, seconds=0.2)
    assert events(patient, job)[-1][1]["state"] == "succeeded"
    strict = start_server(components=JOB_COMPONENT, workers=1, job_timeout_s=0.2)
    stuck = submit(strict, action="stuck")
    assert events(strict, stuck)[-1][1]["error"]["code"] == "call_timeout"


def test_cancel_of_a_job_that_waits(jobs, tmp_path):
    told, trace = tmp_path / "told", tmp_path / "trace"
    first = submit(jobs, action="until_told", label=str(told))
    second = submit(jobs, trace=str(trace))
    answer = jobs.request("DELETE", f"/jobs/{second['id']}")
    assert json.loads(answer.body)["state"] == "cancelled"
    told.touch()
    assert events(jobs, first)[-1][1]["state"] == "succeeded"
    assert not trace.exists()


def test_a_job_that_is_over_is_not_cancelled(jobs):
    job = submit(jobs)
    events(jobs, job)
    assert json.loads(jobs.request("DELETE", f"/jobs/{job['id']}").body)["state"] == "succeeded"
    assert jobs.get(f"/jobs/{job['id']}/result").status == 200


def test_the_list(start_server):
    served = start_server(components=JOB_COMPONENT, workers=0)
    good, bad = submit(served), submit(served, action="raise")
    events(served, bad)
    assert [j["id"] for j in json.loads(served.get("/jobs").body)["jobs"]] == [
        bad["id"],
        good["id"],
    ]
    failed = json.loads(served.get("/jobs?state=failed&limit=5").body)["jobs"]
    assert [job["id"] for job in failed] == [bad["id"]]
    counts = json.loads(served.get("/status").body)["jobs"]
    assert (counts["succeeded"], counts["failed"], counts["running"]) == (1, 1, 0)
    (name,) = {job["component"] for job in failed}
    asked = f"/jobs?state=failed&limit=5&component={name}"
    assert json.loads(served.get(asked).body)["jobs"] == failed
    assert json.loads(served.get("/jobs?component=other").body)["jobs"] == []
    for query in ("state=lost", "limit=0", "limit=x", "limit=99999999999"):
        assert served.get(f"/jobs?{query}").status == 422
    for path in ("", "/result", "/events", "/log"):
        answer = served.get(f"/jobs/nothing{path}")
        assert (answer.status, answer.problem["code"]) == (404, "job_unknown")
    assert served.request("DELETE", "/jobs/nothing").status == 404


def test_who_waits_makes_no_job(jobs):
    before = json.loads(jobs.get("/status").body)["jobs"]
    answer = jobs.post("/apply?wait=true", {"inputs": {"x": [1.0]}})
    assert answer.status == 200
    assert "location" not in answer.headers
    assert json.loads(jobs.get("/status").body)["jobs"] == before


def test_what_cannot_be_taken_on(jobs):
    for query, code in (("wait=maybe", "bad_query"), ("wait=false&run_id=..", "bad_run_id")):
        answer = jobs.post(f"/apply?{query}", {"inputs": {"x": [1.0]}})
        assert (answer.status, answer.problem["code"]) == (422, code)
    answer = jobs.post("/apply?wait=false", {"inputs": {"x": [1.0]}}, accept="text/html")
    assert answer.status == 406


def test_the_queue_of_jobs_is_bounded(start_server, tmp_path, wait_until):
    served = start_server(components=JOB_COMPONENT, workers=0, max_jobs=1)
    told = tmp_path / "told"
    running = submit(served, action="until_told", label=str(told))
    wait_until(lambda: state(served, running)["state"] == "running")
    waiting = submit(served)
    answer = served.post("/apply?wait=false", {"inputs": {"x": [1.0]}})
    assert (answer.status, answer.problem["code"]) == (503, "queue_full")
    told.touch()
    assert events(served, waiting)[-1][1]["state"] == "succeeded"


def test_token_rules(start_server, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    served = start_server(components=JOB_COMPONENT, workers=0, token_file=str(token))
    assert served.post("/apply?wait=false", {"inputs": {"x": [1.0]}}).status == 401
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    job = submit(served, headers=headers)
    for path in ("/jobs", f"/jobs/{job['id']}", f"/jobs/{job['id']}/result", "/status", "/metrics"):
        assert served.get(path).status == 401
        assert served.get(path, headers).status in (200, 202)


def test_status_tells_what_the_page_needs(jobs):
    status = json.loads(jobs.get("/status").body)
    (component,) = status["components"]
    assert component["name"] == "job_component"
    assert len(component["hash"]) == 32
    assert "apply" in component["endpoints"]
    (worker,) = status["workers"]
    assert worker["state"] in ("idle", "busy", "starting")
    assert worker["component"] == "job_component"
    assert status["queue"]["limit"] == 64
    assert set(status["requests"]) == {"total", "errors", "in_flight", "per_second"}
    assert set(status["latency_s"]) == {"p50", "p90", "p99"}


def test_a_listener_may_leave(jobs, tmp_path):
    told = tmp_path / "told"
    job = submit(jobs, action="until_told", label=str(told))
    with contextlib.closing(jobs.connect()) as connection:
        connection.request("GET", f"/jobs/{job['id']}/events")
        with connection.getresponse() as response:
            assert response.readline() == b"event: state\n"
    told.touch()
    assert events(jobs, job)[-1][1]["state"] == "succeeded"


@given(st.lists(st.sampled_from(["put", "take", "remove", "back"]), max_size=60), st.randoms())
def test_places_in_a_queue(steps, random):
    """A queue is a list: first in, first out; any job can leave, and come back to its place."""
    queue, expected, left = _Waiting(), [], []
    for number, step in enumerate(steps):
        if step == "put":
            expected.append(number)
            queue.put(number, f"job {number}")
        elif step == "back" and left:
            number = left.pop()
            expected = sorted([*expected, number])
            queue.put(number, f"job {number}")
        elif expected and step == "take":
            gone = expected.pop(0)
            assert queue.first == (gone, f"job {gone}")
            assert queue.remove(gone)
            left.append(gone)
        elif expected and step == "remove":
            gone = expected.pop(random.randrange(len(expected)))
            assert queue.remove(gone)
            assert not queue.remove(gone)
            assert queue.position(gone) is None
        assert len(queue) == len(expected)
        assert [queue.position(number) for number in expected] == list(range(len(expected)))


class CountedNumber(int):
    """Counts how often numbers are compared."""

    looks = 0

    def __lt__(self, other):
        CountedNumber.looks += 1
        return super().__lt__(other)


def test_a_place_costs_the_same_in_a_long_queue():
    """`GET /jobs?limit=1000` asks for a thousand places."""

    def looks(size):
        queue = _Waiting()
        for number in range(size):
            queue.put(CountedNumber(number), f"job {number}")
        before = CountedNumber.looks
        assert queue.position(CountedNumber(size - 1)) == size - 1
        queue.remove(CountedNumber(size // 2))
        return CountedNumber.looks - before

    assert looks(10_000) <= 2 * 15  # two bisections
