"""Several servers with one database: each answers for every job, and no job is lost when a server ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest

from chainrule import Component
from chainrule.errors import DefinitionError, InputError, TransportError
from chainrule.serve import ServeOptions

JOB_COMPONENT = str(Path(__file__).with_name("job_component.py"))
FINAL = ("succeeded", "failed", "cancelled")
# The whole: CHAINRULE_JOB_ROUNDS=30 CHAINRULE_JOBS_PER_ROUND=100
ROUNDS = int(os.environ.get("CHAINRULE_JOB_ROUNDS", "2"))
JOBS = int(os.environ.get("CHAINRULE_JOBS_PER_ROUND", "20"))


@pytest.fixture(scope="module")
def settings(postgres):
    return {"components": JOB_COMPONENT, "workers": 1, "jobs": postgres.new_schema()}


@pytest.fixture(scope="module")
def servers(start_server, settings):
    """Two servers with a worker each."""
    started = [start_server(**settings) for _ in range(2)]
    yield started
    for served in started:
        served.stop()


def submit(served, **inputs):
    body = {"inputs": {"x": [1.0], **inputs}}
    answer = served.post("/apply?wait=false", body)
    assert answer.status == 202, answer.body
    return json.loads(answer.body)["id"]


def find(served, job_id):
    answer = served.get(f"/jobs/{job_id}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def events(served, job_id):
    with contextlib.closing(served.connect()) as connection:
        connection.request("GET", f"/jobs/{job_id}/events")
        text = connection.getresponse().read().decode()
    blocks = [
        dict(line.split(": ", 1) for line in b.splitlines() if line[0] != ":")
        for b in text.split("\n\n")
    ]
    return [(b["event"], json.loads(b["data"])) for b in blocks if b]


def test_any_server_answers_for_any_job(servers, tmp_path, wait_until):
    told = [tmp_path / name for name in "ab"]
    jobs = [submit(servers[0], action="until_told", label=str(path)) for path in told]
    # Each of the two workers has one of them.
    wait_until(lambda: all(find(servers[1], job)["state"] == "running" for job in jobs))
    seen = {}
    followers = [
        threading.Thread(target=lambda s=s, j=j: seen.update({(s, j): events(servers[s], j)}))
        for s in (0, 1)
        for j in jobs
    ]
    for thread in followers:
        thread.start()
    wait_until(lambda: all(find(s, j)["message"] == "waiting" for s in servers for j in jobs))
    waiting = [submit(served, action="steps") for served in servers]
    assert [find(servers[0], job)["queue_position"] for job in waiting] == [0, 1]
    for path in told:
        path.touch()
    for thread in followers:
        thread.join()
    assert {found[-1][1]["state"] for found in seen.values()} == {"succeeded"}
    for job in (*jobs, *waiting):
        lines = {served: events(served, job) for served in servers}
        assert {found[-1][1]["state"] for found in lines.values()} == {"succeeded"}
        answers = [served.get(f"/jobs/{job}/result") for served in servers]
        assert [answer.tree["y"] for answer in answers] == [[2.0], [2.0]]
        logs = [served.get(f"/jobs/{job}/log").body for served in servers]
        assert logs[0] == logs[1]
        assert (logs[0].count(b"step") == 4) == (job in waiting)
    listed = [[j["id"] for j in json.loads(s.get("/jobs").body)["jobs"]] for s in servers]
    assert listed[0] == listed[1]
    counts = [json.loads(served.get("/status").body)["jobs"] for served in servers]
    assert counts[0] == counts[1]


def test_the_load_of_all_servers_together_is_all_work(servers, tmp_path, wait_until):
    """By its sum or mean over servers an autoscaler knows how many are needed."""
    told = tmp_path / "told"
    jobs = [submit(servers[0], action="until_told", label=str(told)) for _ in range(5)]

    def loads():
        texts = [served.get("/metrics").body.decode() for served in servers]
        return [
            float(re.search(r"^chainrule_load{[^}]*} (\S+)$", text, re.MULTILINE)[1])
            for text in texts
        ]

    # Two run, and three wait, of which each server counts its half.
    wait_until(lambda: loads() == [2.5, 2.5])
    told.touch()
    for job in jobs:
        wait_until(lambda job=job: find(servers[1], job)["state"] == "succeeded")
    wait_until(lambda: loads() == [0.0, 0.0])


def test_a_job_is_cancelled_at_any_server(servers, wait_until):
    """Stuck jobs on both workers; each server is asked to end the job of the other, and its own."""
    stuck = [submit(servers[0], action="stuck") for _ in servers]
    waits = submit(servers[0])
    wait_until(lambda: all(find(servers[0], job)["state"] == "running" for job in stuck))
    assert json.loads(servers[1].request("DELETE", f"/jobs/{waits}").body)["state"] == "cancelled"
    for job in stuck:
        answer = servers[1].request("DELETE", f"/jobs/{job}")
        assert (answer.status, json.loads(answer.body)["state"]) == (200, "cancelled")
    after = submit(servers[0])
    assert events(servers[1], after)[-1][1]["state"] == "succeeded"


def test_a_key_is_known_to_all_servers_at_once(servers, tmp_path):
    trace, found = tmp_path / "trace", []
    body = {"inputs": {"x": [3.0], "trace": str(trace), "label": "once"}}

    def ask(served):
        found.append(served.post("/apply", body, headers={"Idempotency-Key": "shared"}))

    threads = [threading.Thread(target=ask, args=(served,)) for served in servers * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.tree["y"] for answer in found] == [[6.0]] * 8
    assert trace.read_text() == "once\n"
    other = servers[1].post(
        "/apply", {"inputs": {"x": [4.0]}}, headers={"Idempotency-Key": "shared"}
    )
    assert (other.status, other.problem["code"]) == (422, "idempotency_key_reused")


def test_a_job_that_may_run_twice_is_run_again_when_its_server_dies(
    start_server, postgres, tmp_path, wait_until
):
    settings = {
        "components": JOB_COMPONENT,
        "workers": 1,
        "jobs": postgres.new_schema(),
        "job_lease_s": 3,
    }
    dying = start_server(**settings)
    trace, told = tmp_path / "trace", tmp_path / "told"
    inputs = {"action": "until_told", "trace": str(trace), "label": str(told)}
    with Component.from_url(dying.url, idempotent=True) as component:
        again = component.submit("apply", {"x": [1.0], **inputs}).id
    wait_until(trace.exists)
    lost = submit(dying)
    other = start_server(**settings)
    wait_until(lambda: find(other, lost)["state"] == "succeeded")
    dying.process.kill()
    dying.process.wait()
    wait_until(lambda: trace.read_text().count("\n") == 2)
    told.touch()
    assert events(other, again)[-1][1]["state"] == "succeeded"
    other.stop()


def test_a_database_that_hangs(start_server, postgres, tmp_path, wait_until):
    """It takes connections and is silent: jobs are stopped in time, callers are told, then work goes on."""
    served = start_server(
        components=JOB_COMPONENT, workers=1, jobs=postgres.new_schema(), job_lease_s=3
    )
    trace, told = tmp_path / "trace", tmp_path / "told"
    inputs = {"action": "until_told", "trace": str(trace), "label": str(told)}
    with Component.from_url(served.url, idempotent=True) as component:
        again = component.submit("apply", {"x": [1.0], **inputs}).id
    wait_until(lambda: trace.exists() and find(served, again)["message"] == "waiting")
    with postgres.frozen():
        # The only worker is free once the job has been stopped.
        assert served.post("/apply", {"inputs": {"x": [1.0]}}).status == 200
        assert "chainrule_calls_running" in served.get("/metrics").body.decode()
        refused = [
            served.get(f"/jobs/{again}"),
            served.post("/apply?wait=false", {"inputs": {"x": [1.0]}}),
        ]
        for answer in refused:
            assert (answer.status, answer.problem["code"]) == (503, "jobs_database_unreachable")
    told.touch()
    wait_until(lambda: served.get(f"/jobs/{again}").status == 200)
    assert events(served, again)[-1][1]["state"] == "succeeded"
    assert trace.read_text().count("\n") == 2
    with postgres.frozen():
        served.process.terminate()
        served.process.wait(300)
    served.stop()


def test_of_keyed_calls_only_the_one_that_ran_is_lost_with_its_server(
    start_server, postgres, tmp_path, wait_until
):
    """Six calls and two workers, one of which dies: its caller is told, and all other calls run, once."""
    settings = {
        "components": JOB_COMPONENT, "workers": 1, "jobs": postgres.new_schema(), "job_lease_s": 3,
    }  # fmt: skip
    servers = [start_server(**settings) for _ in range(2)]
    trace, told = tmp_path / "trace", tmp_path / "told"
    inputs = {"action": "until_told", "trace": str(trace), "label": str(told)}
    with Component.from_urls(
        [served.url for served in servers],
        idempotent="key",
        startup_timeout=120,
    ) as component:
        calls = [
            component.start_call("apply", {"inputs": {"x": [float(k)], **inputs}}) for k in range(6)
        ]
        wait_until(lambda: trace.exists() and trace.read_text().count("\n") == 2)
        servers[0].process.kill()
        servers[0].process.wait()
        told.touch()
        failed = []
        for k, call in enumerate(calls):
            try:
                np.testing.assert_array_equal(call.result(120)["y"], [2.0 * k])
            except TransportError as error:
                failed.append(error.code)
    assert failed == ["server_stopped"]
    assert trace.read_text().count("\n") == 6
    servers[1].stop()


def metrics_of(served):
    return set(served.get("/metrics").body.decode().splitlines())


def test_jobs_without_a_database_for_a_while(start_server, postgres, tmp_path, wait_until):
    """The job goes on, calls and metrics are answered, callers wait, and the end is kept."""
    served = start_server(
        components=JOB_COMPONENT, workers=2, jobs=postgres.new_schema(), job_lease_s=60
    )
    told = tmp_path / "told"
    running = submit(served, action="until_told", label=str(told))
    wait_until(lambda: find(served, running)["state"] == "running")
    before = metrics_of(served)
    assert "chainrule_jobs_store_up{} 1" in before
    assert [line for line in before if line.startswith("chainrule_jobs_waiting{")]
    postgres.stop()
    try:
        told.touch()
        assert served.post("/apply", {"inputs": {"x": [1.0]}}).status == 200
        without = metrics_of(served)
        assert "chainrule_jobs_store_up{} 0" in without
        # What is not known is left out: 0 would say that no job waits.
        assert not [line for line in without if line.startswith("chainrule_jobs_waiting{")]
        later = []
        caller = threading.Thread(target=lambda: later.append(submit(served)))
        caller.start()
    finally:
        postgres.start()
    caller.join()
    for job in (running, *later):
        assert events(served, job)[-1][1]["state"] == "succeeded"
    served.stop()


def test_who_waits_for_a_job_waits_for_the_database_too(
    start_server, postgres, tmp_path, wait_until
):
    """A caller in `result` is not told that the database is away before its own time is over."""
    served = start_server(
        components=JOB_COMPONENT, workers=1, jobs=postgres.new_schema(), job_lease_s=3
    )
    inputs = {"action": "until_told", "label": str(tmp_path / "told")}
    with Component.from_url(served.url, idempotent=True) as component:
        over = component.submit("apply", {"x": [1.0]})
        wait_until(lambda: over.done)
        waits = component.submit("apply", {"x": [2.0], **inputs})
        postgres.stop()
        try:
            wait_until(lambda: served.get(f"/jobs/{waits.id}").status == 503)
            for job in (over, waits):
                with pytest.raises(TimeoutError, match="not done yet"):
                    job.result(timeout=0.5)
            (tmp_path / "told").touch()
        finally:
            postgres.start()
        np.testing.assert_array_equal(over.result(120)["y"], [2.0])
        np.testing.assert_array_equal(waits.result(120)["y"], [4.0])
    served.stop()


def test_calls_with_keys_wait_for_the_database_too(start_server, postgres, tmp_path, wait_until):
    """Calls and jobs that meet a server without its database are answered once that is back, and run once."""
    served = start_server(
        components=JOB_COMPONENT, workers=1, jobs=postgres.new_schema(), job_lease_s=3
    )
    trace = tmp_path / "trace"
    with Component.from_urls([served.url], idempotent="key", startup_timeout=120) as component:
        assert component.name
        submitted = []
        postgres.stop()
        try:
            wait_until(lambda: served.get("/jobs").status == 503)
            inputs = {"x": [2.0], "trace": str(trace), "label": "once"}
            call = component.start_call("apply", {"inputs": inputs})
            thread = threading.Thread(
                target=lambda: submitted.append(component.submit("apply", {"x": [3.0]}))
            )
            thread.start()
            wait_until(lambda: served.get("/jobs").status == 503)
        finally:
            postgres.start()
        np.testing.assert_array_equal(call.result(120)["y"], [4.0])
        thread.join()
        np.testing.assert_array_equal(submitted[0].result(120)["y"], [6.0])
    assert trace.read_text() == "once\n"
    served.stop()


def test_kill_at_random(start_server, postgres, tmp_path, wait_until):
    """Three servers, one of which is killed in every round; the database is restarted in between."""
    settings = {
        "components": JOB_COMPONENT, "workers": 2, "jobs": postgres.new_schema(), "job_lease_s": 5,
        "jobs_objects": str(tmp_path / "bodies"),
    }  # fmt: skip
    with ThreadPoolExecutor(3) as together:
        servers = list(together.map(lambda _: start_server(**settings), range(3)))
    chance, totals, slowest = random.Random(31), Counter(), 0.0
    for number in range(ROUNDS):
        began = time.monotonic()
        trace = tmp_path / f"trace-{number}"
        acknowledged: dict[str, int] = {}

        def caller(k, number=number, trace=trace, acknowledged=acknowledged):
            """Submits with a key, again at another server until it is acknowledged."""
            mine = random.Random(k)
            for job in range(k, JOBS, 3):
                large = 20_000 if job % 10 == 0 else 1
                inputs = {
                    "x": [float(job)] * large, "trace": str(trace), "label": str(job),
                    "seconds": 0.01,
                }  # fmt: skip
                headers = {"Idempotency-Key": f"{number}-{job}"}
                while True:
                    with contextlib.suppress(OSError, HTTPException):
                        answer = mine.choice(servers).post(
                            "/apply?wait=false", {"inputs": inputs}, headers=headers
                        )
                        if answer.status == 202:
                            acknowledged[json.loads(answer.body)["id"]] = job
                            break
                        assert answer.status == 503, answer.body

        callers = [threading.Thread(target=caller, args=(k,)) for k in range(3)]
        for thread in callers:
            thread.start()
        kill_at = chance.randrange(1, JOBS // 2)
        wait_until(lambda t=trace, n=kill_at: t.exists() and t.read_text().count("\n") >= n)
        victim = chance.randrange(3)
        servers[victim].process.kill()
        servers[victim].process.wait()
        if number % 3 == 1:
            postgres.stop(chance.choice(["fast", "immediate"]))
            postgres.start()
        servers[victim] = start_server(**settings)
        for thread in callers:
            thread.join()
        assert len(acknowledged) == len(set(acknowledged.values())) == JOBS

        def jobs_left(acknowledged=acknowledged):
            found = json.loads(servers[0].get("/jobs?limit=1000").body)["jobs"]
            return [j for j in found if j["id"] in acknowledged and j["state"] not in FINAL]

        wait_until(lambda: not jobs_left())
        runs, states = Counter(trace.read_text().split()), Counter()
        assert max(runs.values()) == 1, "something ran twice"
        for job_id, job in acknowledged.items():
            served = servers[job % 3]
            found = find(served, job_id)
            states[found["state"]] += 1
            answer = served.get(f"/jobs/{job_id}/result")
            if found["state"] == "succeeded":
                assert runs[str(job)] == 1
                np.testing.assert_array_equal(np.unique(answer.tree["y"]), [2.0 * job])
            else:
                assert found["error"]["code"] == "server_stopped"
        # Those that ran on the server that was killed; where the database was away, other leases may end too.
        assert states["failed"] <= (2 if number % 3 != 1 else 6)
        totals += states
        slowest = max(slowest, time.monotonic() - began)
    print(f"{ROUNDS} rounds of {JOBS} jobs: {dict(totals)}; slowest round {slowest:.1f} s")  # noqa: T201
    counts = json.loads(servers[0].get("/status").body)["jobs"]
    expected = dict.fromkeys(("queued", "running", "cancelled", "failed", "succeeded"), 0)
    assert counts == expected | totals
    for served in servers:
        served.process.terminate()
    for served in servers:
        served.stop()


def test_what_a_server_says_when_it_cannot_have_its_database(postgres, tmp_path):
    """In one line, without the password; and in a process that has no psycopg."""
    url = postgres.new_schema().replace("chainrule@", "stranger:pa55word@")
    file = tmp_path / "url"
    file.write_text(f"{url}\n")
    hidden = "import sys; sys.modules['psycopg'] = None; from chainrule.cli import main; main()"
    for jobs, start, code in (
        (url, ["-m", "chainrule"], "jobs_database_unreachable"),
        (str(file), ["-c", hidden], "missing_dependency"),
    ):
        command = [sys.executable, *start, "serve", JOB_COMPONENT, "--port", "0", "--jobs", jobs]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode != 0
        assert code in done.stderr
        assert "pa55word" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    assert "pa55word" not in repr(ServeOptions(jobs=url))
    file.write_text("mysql://u:pa55word@h/d")
    for wrong in (file, tmp_path / "absent", "mysql://u:pa55word@h/d"):
        with pytest.raises(DefinitionError) as refused:
            ServeOptions(jobs=str(wrong)).read_jobs_url()
        assert refused.value.code == "bad_jobs_url"
        assert "pa55word" not in str(refused.value)
    for together in ({"jobs": url, "jobs_folder": tmp_path}, {"jobs_objects": "s3://b"}):
        with pytest.raises(InputError, match="--jobs"):
            ServeOptions(**together)


def test_a_handle_reads_a_job_of_a_server_that_is_gone_from_another_one(
    start_server, settings, servers
):
    own = start_server(**settings)
    with Component.from_urls([own.url, servers[0].url], startup_timeout=120) as component:
        inputs = {"x": [1.0]}
        assert component.name  # the first use
        keys = map(str, itertools.count())
        key = next(k for k in keys if component.transport._home("submit", k.encode()) == own.url)
        job = component.submit("apply", inputs, idempotency_key=key)
        result = job.result(120)
        own.stop()
        found = component.submit("apply", inputs, idempotency_key=key)
        assert found.id == job.id, "the other server knows the key"
        for each in (job, found, component.job(job.id)):
            assert each.done
            np.testing.assert_equal(each.result(120), result)
