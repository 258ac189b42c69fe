"""Concurrent single calls become one evaluation; every caller gets its own answer.

Four callers at a time meet a size of four and a delay that no caller reaches, so what is merged does not
depend on how fast anything is.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest

from chainrule.runtime import ComponentConfig, Float64, component
from chainrule.serve._merging import Merger
from chainrule.serve.internal import Call, WorkerPool

COMPONENTS = Path(__file__).with_name("batching_component.py")


@pytest.fixture(
    scope="module",
    params=[(0, True), (0, False), (1, True), (1, False)],
    ids=lambda p: f"workers={p[0]}, access_log={p[1]}",
)
def served(request, start_server):
    components = [f"{COMPONENTS}:{name}" for name in ("rows", "point")]
    workers, access_log = request.param
    return start_server(
        components=components, workers=workers, access_log=access_log, merge_delay_s=60.0
    )


def together(served, path, requests):
    """The answers to requests that are sent at the same time."""
    answers = [None] * len(requests)

    def send(index):
        answers[index] = served.post(path, {"inputs": requests[index]})

    threads = [threading.Thread(target=send, args=(k,)) for k in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_four_calls_are_one_evaluation(served, tmp_path):
    trace = tmp_path / "trace"
    inputs = [np.full((k + 1, 2), float(k)) for k in range(4)]
    requests = [{"x": x.tolist(), "factor": 3.0, "trace": str(trace)} for x in inputs]
    for x, answer in zip(inputs, together(served, "/apply", requests), strict=True):
        assert answer.status == 200
        np.testing.assert_array_equal(answer.tree["result"], 3 * x)
    assert trace.read_text() == "(10, 2)\n"


def test_only_what_is_equal_otherwise_goes_together(served, tmp_path):
    trace = tmp_path / "trace"
    factors = (2.0, 2.0, 5.0, 5.0)
    requests = [{"x": [[1.0, k]], "factor": f, "trace": str(trace)} for k, f in enumerate(factors)]
    for k, answer in enumerate(together(served, "/apply", requests)):
        np.testing.assert_array_equal(answer.tree["result"], [[factors[k], factors[k] * k]])
    assert trace.read_text() == "(2, 2)\n(2, 2)\n"


def test_every_caller_has_its_own_error(served, tmp_path):
    trace = tmp_path / "trace"
    values = ([[1.0, 2.0]], [[-1.0, 0.0]], "text", [[3.0, 4.0]])
    requests = [{"x": x, "factor": 1.0, "trace": str(trace)} for x in values]
    answers = together(served, "/apply", requests)
    assert [answer.status for answer in answers] == [200, 500, 422, 200]
    assert answers[1].problem["exception_message"] == "negative"
    np.testing.assert_array_equal(answers[3].tree["result"], [[3.0, 4.0]])


def test_a_schema_that_does_not_allow_it(served, tmp_path):
    trace = tmp_path / "trace"
    for shift in range(2):
        requests = [{"x": [shift + k, 1.0], "trace": str(trace)} for k in range(4)]
        for k, answer in enumerate(together(served, "/c/point/apply", requests)):
            np.testing.assert_array_equal(answer.tree["result"], [(shift + k) ** 2, 1.0])
    assert trace.read_text() == "(2,)\n" * 8


def test_calls_of_both_protocols_are_one_evaluation(start_server, tmp_path):
    served = start_server(
        components=f"{COMPONENTS}:cases", workers=1, merge_delay_s=60.0, umbridge=True
    )
    trace = str(tmp_path / "trace")
    config = {"shapes": {"x": [1, 2]}, "inputs": {"trace": trace}}
    evaluate = {"name": "cases", "config": config}
    assert served.post("/OutputSizes", evaluate).status == 200  # asks for the sizes once
    (tmp_path / "trace").unlink(missing_ok=True)
    requests = [
        ("/Evaluate", {**evaluate, "input": [[1.0, 2.0]]}),
        ("/Evaluate", {**evaluate, "input": [[3.0]]}),
        ("/c/cases/apply", {"inputs": {"x": [[3.0, 4.0]], "trace": trace}}),
        ("/Evaluate", {**evaluate, "input": [[5.0, 6.0]]}),
    ]
    with ThreadPoolExecutor(4) as pool:
        first, refused, plain, last = pool.map(lambda request: served.post(*request), requests)
    assert first.tree == {"output": [[1.0, 4.0]]}
    assert last.tree == {"output": [[25.0, 36.0]]}
    np.testing.assert_array_equal(plain.tree["result"], [[9.0, 16.0]])
    assert refused.status == 400
    assert refused.tree["error"]["type"] == "InvalidInput"
    assert Path(trace).read_text() == "(3, 2)\n"


def test_one_that_takes_the_worker_down_takes_nobody_along(start_server, tmp_path):
    served = start_server(components=f"{COMPONENTS}:rows", workers=1, merge_delay_s=60.0)
    requests = [
        {"x": [[x, 1.0]], "factor": 2.0, "trace": str(tmp_path / "trace")}
        for x in (1.0, 1e7, 2.0, 3.0)
    ]
    answers = together(served, "/apply", requests)
    assert [answer.status for answer in answers] == [200, 502, 200, 200]
    np.testing.assert_array_equal(answers[3].tree["result"], [[6.0, 2.0]])


def test_the_operator_decides(start_server, tmp_path):
    """Elementwise: equal shapes are stacked. The author did not ask for merging, the operator does."""
    served = start_server(
        components=f"{COMPONENTS}:anything", workers=1, merge_up_to=3, merge_delay_s=60.0
    )
    trace = tmp_path / "trace"
    requests = [{"x": [[k, 1.0]], "trace": str(trace)} for k in range(3)]
    for k, answer in enumerate(together(served, "/apply", requests)):
        np.testing.assert_array_equal(answer.tree["result"], [[k * k, 1.0]])
    assert trace.read_text() == "(3, 1, 2)\n"
    requests = served.get("/metrics").body.decode()
    assert (
        'chainrule_requests_total{component="anything",endpoint="apply",status="200"} 3' in requests
    )


def test_switched_off_and_alone(start_server, tmp_path):
    off = start_server(components=f"{COMPONENTS}:rows", workers=0, merge_up_to=0)
    short = start_server(components=f"{COMPONENTS}:rows", workers=0, merge_delay_s=0.001)
    for served in (off, short):
        request = {"x": [[1.0, 2.0]], "factor": 2.0, "trace": str(tmp_path / "trace")}
        answer = served.post("/apply", {"inputs": request})
        np.testing.assert_array_equal(answer.tree["result"], [[2.0, 4.0]])


def test_callers_who_leave_do_not_hold_up_the_call_behind_them():
    begun, may_end = threading.Event(), threading.Event()

    @component
    def twice(x: Float64) -> Float64:
        begun.set()
        may_end.wait(300)
        return 2 * x

    async def leave():
        limits = {"timeout_s": None, "max_queue": 10, "startup_timeout_s": 300}
        pool = WorkerPool(twice, ComponentConfig(), workers=0, **limits)
        await pool.start()
        merger = Merger(pool, max_size=2, delay_s=0.0)
        calls = [asyncio.create_task(merger.call(_call(0)))]
        await asyncio.to_thread(begun.wait, 300)
        calls += [asyncio.create_task(merger.call(_call(k))) for k in (1, 2, 3)]
        await asyncio.sleep(0)  # all of them wait
        for call in calls[1:3]:
            call.cancel()
        await asyncio.wait(calls[1:3])
        may_end.set()
        replies = await asyncio.wait_for(asyncio.gather(calls[0], calls[3]), 60)
        await pool.stop()
        return [
            orjson.loads(b"".join(reply.open()))["result"]["data"]["buffer"] for reply in replies
        ]

    assert asyncio.run(leave()) == [0.0, 6.0]


def _call(x):
    return Call("apply", orjson.dumps({"inputs": {"x": float(x)}}))
