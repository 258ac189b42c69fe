"""A retry with the same key gets the first result; the component runs once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

JOB_COMPONENT = str(Path(__file__).with_name("job_component.py"))


@pytest.fixture(scope="module")
def served(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("idempotency")
    return start_server(components=JOB_COMPONENT, workers=2, jobs_folder=str(folder / "jobs"))


def post(served, key, query="", **inputs):
    body = {"inputs": {"x": [1.0], **inputs}}
    return served.post(f"/apply{query}", body, headers={"Idempotency-Key": key})


def test_the_second_request_gets_the_first_result(served, tmp_path):
    trace = tmp_path / "trace"
    first = post(served, "a", trace=str(trace))
    second = post(served, "a", trace=str(trace))
    assert first.status == second.status == 200
    assert first.body == second.body
    assert first.tree["y"] == [2.0]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert trace.read_text().count("\n") == 1


def test_failures_are_results_too(served, tmp_path):
    trace = tmp_path / "trace"
    answers = [post(served, "b", action="raise", trace=str(trace)) for _ in range(2)]
    assert [answer.status for answer in answers] == [500, 500]
    assert answers[0].problem == answers[1].problem
    assert trace.read_text().count("\n") == 1


def test_requests_at_the_same_time_run_once(served, tmp_path):
    trace = tmp_path / "trace"
    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(post(served, "c", trace=str(trace), seconds=0.2))
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.tree["y"] for answer in answers] == [[2.0]] * 6
    assert trace.read_text().count("\n") == 1


def test_a_key_belongs_to_one_request(served):
    assert post(served, "d").status == 200
    answer = post(served, "d", seconds=0.001)
    assert (answer.status, answer.problem["code"]) == (422, "idempotency_key_reused")


def test_jobs_have_keys_as_well(served):
    first = json.loads(post(served, "e", "?wait=false").body)
    second = post(served, "e", "?wait=false")
    assert second.status == 202
    assert json.loads(second.body)["id"] == first["id"]
    assert post(served, "e").tree["y"] == [2.0]


def test_a_caller_that_leaves_comes_back_for_its_result(served, tmp_path, wait_until):
    trace = tmp_path / "trace"
    body = json.dumps({"inputs": {"x": [1.0], "trace": str(trace), "seconds": 0.3}})
    headers = {"Idempotency-Key": "f", "Content-Type": "application/json"}
    connection = served.connect()
    connection.request("POST", "/apply", body, headers)
    wait_until(trace.exists)
    connection.close()
    answer = served.request("POST", "/apply", body, headers)
    assert answer.tree["y"] == [2.0]
    assert trace.read_text().count("\n") == 1


def test_keys_that_are_none(served):
    for key in ("", "k" * 256):
        answer = post(served, key)
        assert (answer.status, answer.problem["code"]) == (422, "bad_idempotency_key")
