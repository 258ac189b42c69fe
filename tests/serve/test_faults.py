"""Author code that hangs, crashes or blocks, callers that leave: what the others notice is nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from chainrule.client import Component
from chainrule.runtime import ComponentConfig
from chainrule.serve.internal import Call, CallError, WorkerPool


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("odd", "raised BaseException: neither an error nor an exit"),
        ("interrupt", "raised KeyboardInterrupt"),
        ("no_text", "raised UnspeakableError: (its text cannot be made: RuntimeError)"),
        ("half_a_pair", r"raised FileNotFoundError: mesh\udcff.vtk"),
        ("strange_error", "raised InputError with parts that cannot be sent"),
    ],
)
def test_whatever_an_author_raises_is_an_answer_and_costs_no_worker(any_served, action, said):
    before = any_served.apply().tree["pid"]
    answer = any_served.apply(action)
    assert (answer.status, answer.problem["code"]) == (500, "component_failed")
    assert said in answer.problem["message"]
    assert any_served.apply().tree["pid"] == before


@pytest.fixture(scope="module")
def single(start_server):
    """One worker, one place in the queue."""
    return start_server(workers=1, max_queue=1)


@pytest.mark.parametrize("action", ["sleep", "spin", "hold_the_gil"])
def test_health_answers_while_a_worker_computes(single, action, wait_until):
    def was_asked_meanwhile():
        call = single.in_background(action, 1.0)
        while call.is_alive() and not single.is_running:
            time.sleep(0.01)
        assert single.get("/health").status == 200
        is_running = single.is_running
        assert call.result().status == 200
        return is_running  # otherwise the machine was busy, and the call was over before

    wait_until(was_asked_meanwhile)


def test_callers_queue_up_and_are_then_turned_away(single, tmp_path, wait_until):
    gate = tmp_path / "gate"
    first = single.in_background(f"until {gate}")
    wait_until(lambda: single.is_running)
    second = single.in_background("double")
    wait_until(lambda: single.metric("calls_waiting") == 1)
    third = single.apply()
    assert third.status == 503
    assert third.problem["code"] == "queue_full"
    assert int(third.headers["retry-after"]) >= 1
    gate.touch()
    assert first.result().status == second.result().status == 200


@pytest.mark.parametrize(
    ("action", "fact"),
    [
        ("segfault", {"signal": "SIGSEGV"}),
        ("signal_without_a_name", {"signal": "signal 40"}),
        ("exit", {"exit_code": 3}),
    ],
)
def test_a_crash_costs_one_answer(single, action, fact, tmp_path, wait_until):
    gate = tmp_path / "gate"
    call = single.in_background(f"until {gate}")
    wait_until(lambda: single.is_running)
    crashing = single.in_background(action)
    wait_until(lambda: single.metric("calls_waiting") == 1)
    gate.touch()
    assert call.result().status == 200
    answer = crashing.result()
    assert answer.status == 502
    assert answer.problem["code"] == "worker_crashed"
    assert fact.items() <= answer.problem.items()
    assert single.apply().status == 200


def test_a_queued_call_survives_the_crash_before_it(single, tmp_path, wait_until):
    slow = single.in_background(f"until {tmp_path / 'never'}")
    wait_until(lambda: single.is_running)
    queued = single.in_background("double")
    wait_until(lambda: single.metric("calls_waiting") == 1)
    (worker,) = psutil.Process(single.process.pid).children()
    os.kill(worker.pid, signal.SIGKILL)
    answer = slow.result()
    assert (answer.status, answer.problem["signal"]) == (502, "SIGKILL")
    assert queued.result().status == 200


@pytest.fixture(scope="module")
def impatient(start_server):
    """Calls of at most one second."""
    return start_server(workers=1, timeout_s=1.0)


@pytest.mark.parametrize("action", ["sleep", "hold_the_gil", "stubborn"])
def test_a_call_that_takes_too_long_is_stopped(impatient, action, wait_until):
    answer = impatient.apply(action, 60.0)
    assert answer.status == 504
    assert answer.problem["code"] == "call_timeout"
    wait_until(lambda: impatient.apply().status == 200)


@pytest.mark.parametrize(("action", "stays"), [("sleep", True), ("stubborn", False)])
def test_a_caller_that_leaves_cancels_its_work(served, action, stays, wait_until):
    def pids():
        return {child.pid for child in psutil.Process(served.process.pid).children()}

    before = pids()
    body = json.dumps({"inputs": {"x": [1.0], "action": action, "seconds": 60}})
    with contextlib.closing(served.connect()) as connection:
        connection.request("POST", "/apply", body, {"Content-Type": "application/json"})
        wait_until(lambda: served.is_running)
    wait_until(lambda: not served.is_running)
    # Code that can be interrupted keeps its process and what it has loaded; other code is replaced, and a
    # process that was killed is still listed for a moment.
    wait_until(lambda: len(pids()) == 2 and (pids() == before) is stays)
    assert served.apply().status == 200


def test_crashes_in_a_row_are_reported_and_overcome(start_server, wait_until):
    served = start_server(workers=1)
    statuses = [served.apply("exit").status for _ in range(4)]
    assert set(statuses) <= {502, 503}
    ready = served.get("/ready")
    assert (ready.status, ready.tree["status"]) == (503, "degraded")
    assert served.get("/health").status == 200
    wait_until(lambda: served.apply().status == 200)
    assert served.get("/ready").status == 200
    served.stop()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_stop_lets_calls_finish(start_server, stop, tmp_path, wait_until):
    served = start_server(workers=1, grace_s=300)
    gate = tmp_path / "gate"
    call = served.in_background(f"until {gate}")
    wait_until(lambda: served.is_running)
    served.process.send_signal(stop)
    wait_until(lambda: not accepts(served))
    gate.touch()
    assert call.result().status == 200
    served.process.wait(300)


def test_a_second_ctrl_c_does_not_wait(start_server, wait_until):
    served = start_server(workers=1, grace_s=60)
    served.in_background("stubborn", 60)
    wait_until(lambda: served.is_running)
    served.process.send_signal(signal.SIGINT)
    wait_until(lambda: not accepts(served))
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(300) == 0


def accepts(served):
    with contextlib.suppress(OSError), contextlib.closing(served.connect()) as connection:
        connection.connect()
        return True
    return False


@pytest.mark.parametrize("workers", [0, 1], ids=["thread", "process"])
def test_stop_does_not_wait_for_a_component_that_is_being_loaded(workers, tmp_path, wait_until):
    begun = tmp_path / "begun"
    source = tmp_path / "slow.py"
    source.write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
        "end = time.monotonic() + 60\nwhile time.monotonic() < end:\n    pass\n"
    )
    settings = json.dumps({"components": str(source), "port": 0, "workers": workers})
    command = [sys.executable, str(Path(__file__).with_name("run_server.py")), settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(begun.exists)
        workers = psutil.Process(process.pid).children()
        process.terminate()
        assert process.communicate(timeout=300) == ("", None)
    wait_until(lambda: not any(worker.is_running() for worker in workers))


def test_loading_takes_too_long(tmp_path):
    source = tmp_path / "slow.py"
    source.write_text("import time\ntime.sleep(5)\n")
    limits = {"timeout_s": None, "max_queue": 1, "startup_timeout_s": 0.05}
    with pytest.raises(CallError, match="--startup-timeout"):
        asyncio.run(WorkerPool(source, ComponentConfig(), workers=0, **limits).start())


def test_a_component_is_loaded_on_the_thread_that_runs_it(tmp_path):
    source = tmp_path / "threaded.py"
    source.write_text(
        "import threading\nfrom chainrule.runtime import component\nloaded_on = threading.get_ident()\n"
        "@component\ndef same() -> bool:\n    return threading.get_ident() == loaded_on\n"
    )

    async def call():
        limits = {"timeout_s": None, "max_queue": 1, "startup_timeout_s": 60}
        pool = WorkerPool(f"{source}:same", ComponentConfig(), workers=0, **limits)
        await pool.start()
        reply = await pool.call(Call("apply", b'{"inputs": {}}'))
        await pool.stop()
        return b"".join(reply.open())

    assert json.loads(asyncio.run(call())) == {"result": True}


def test_a_system_without_room_for_a_process_is_not_the_end(component_path, monkeypatch):
    def no_room(*args, **kwargs):
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", no_room)
    with pytest.raises(BlockingIOError):  # which a pool that replaces a worker outlives
        asyncio.run(start_pool(component_path))


def test_a_component_that_dies_while_it_is_loaded(tmp_path):
    source = tmp_path / "deadly.py"
    source.write_text("import os\nos._exit(4)\n")
    with pytest.raises(CallError, match="status 4 while it loaded") as caught:
        asyncio.run(start_pool(str(source)))
    assert caught.value.details == {"exit_code": 4}


def test_a_reply_that_comes_in_the_step_in_which_its_caller_leaves_costs_no_worker(component_path):
    async def leave():
        limits = {"timeout_s": None, "max_queue": 1, "startup_timeout_s": 300}
        pool = WorkerPool(component_path, ComponentConfig(), workers=1, **limits)
        await pool.start()
        call = asyncio.create_task(pool.call(Call("apply", b'{"inputs": {"x": [1.0]}}')))
        await asyncio.sleep(0)  # it is sent
        (worker,) = pool._workers
        poll = select.poll()
        poll.register(worker._connection, select.POLLIN)
        assert poll.poll(300_000)
        # The loop finds the reply together with this, and handles this first.
        asyncio.get_running_loop().call_soon(call.cancel)
        with pytest.raises(asyncio.CancelledError):
            await call
        reply = await pool.call(Call("apply", b'{"inputs": {"x": [1.0]}}'))
        await pool.stop()
        return reply.status, pool.workers[0].restarts

    assert asyncio.run(leave()) == (200, 0)


async def start_pool(source):
    limits = {"timeout_s": None, "max_queue": 1, "startup_timeout_s": 60}
    await WorkerPool(source, ComponentConfig(), workers=1, **limits).start()


def test_stop_does_not_wait_for_ever(start_server, wait_until):
    served = start_server(workers=1, grace_s=0.3)
    workers = psutil.Process(served.process.pid).children()
    call = served.in_background("stubborn", 60)
    wait_until(lambda: served.is_running)
    served.process.send_signal(signal.SIGTERM)
    answer = call.result()
    assert answer.status == 503
    assert answer.problem["code"] == "shutting_down"
    served.process.wait(300)
    assert not any(worker.is_running() for worker in workers)


def test_workers_do_not_outlive_a_killed_server(start_server, wait_until):
    served = start_server(workers=2)
    workers = psutil.Process(served.process.pid).children()
    assert len(workers) == 2
    served.in_background("stubborn", 60)
    wait_until(lambda: served.is_running)
    served.process.kill()
    served.process.wait(300)
    wait_until(lambda: not any(worker.is_running() for worker in workers))


@pytest.mark.parametrize(
    ("action", "code", "text"),
    [
        ("raise", "component_failed", "ValueError: mesh is empty"),
        ("exit_politely", "component_exited", "exit"),
        ("bad_output", "bad_output", "y"),
    ],
)
def test_the_author_is_heard(served, action, code, text):
    answer = served.apply(action)
    assert answer.status == 500
    assert answer.problem["code"] == code
    assert text in answer.problem["message"]
    assert "traceback" not in answer.problem


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("missing_file", "No such file or directory: '…/weights.bin'"),
        (
            "path_in_words",
            "bad mesh …/fault_component.py: 3 m/s at http://example.org/a/b is wrong",
        ),
        (
            "paths_of_every_kind",
            "mesh:…/a file://…/b sqlite:///…/c -I…/d.h '…/e' at http://example.org:80/a/b",
        ),
    ],
)
def test_callers_do_not_learn_where_files_are(any_served, action, said, wait_until):
    answer = any_served.apply(action)
    assert said in answer.problem["message"]
    assert said in answer.problem["exception_message"]
    assert str(Path(__file__).parent) not in answer.body.decode()
    inputs = {"x": [1.0], "action": action}
    job = json.loads(any_served.post("/apply?wait=false", {"inputs": inputs}).body)["id"]
    wait_until(lambda: json.loads(any_served.get(f"/jobs/{job}").body)["state"] == "failed")
    for path in ("", "/result"):
        found = any_served.get(f"/jobs/{job}{path}").body.decode()
        assert said in found
        assert str(Path(__file__).parent) not in found


def test_debug_shows_tracebacks_and_runs_regression_tests(start_server):
    debugging = start_server(workers=1, debug=True)
    assert "fault_component.py" in debugging.apply("raise").problem["traceback"]
    test = {
        "endpoint": "apply",
        "payload": {"inputs": {"x": [1.0], "action": "raise"}},
        "expected_exception": "ValueError",
    }
    assert debugging.post("/test", test).tree["status"] == "passed"
    assert (
        debugging.post("/test", test | {"expected_exception": "KeyError"}).tree["status"]
        != "passed"
    )
    assert debugging.post("/test", {"endpoint": "apply"}).status == 422
    debugging.stop()


def test_an_author_who_prints_a_lot(start_server, tmp_path):
    served = start_server(workers=1, log_file=str(tmp_path / "logs" / "out.log"))
    assert served.apply("print", 25).status == 200  # 25 MB
    assert served.post("/test", {}).status == 404
    served.stop()
    sizes = [file.stat().st_size for file in (tmp_path / "logs").iterdir()]
    assert len(sizes) == 2
    assert all(0 < size <= 10 << 20 for size in sizes)


def test_plain_calls_leave_no_file(served, folder):
    # The server is shared: other tests may have asked for files before.
    before = set(Path(folder).rglob("*"))
    assert served.apply().status == 200
    assert set(Path(folder).rglob("*")) == before


def test_a_thread_that_hangs_turns_callers_away(start_server, wait_until):
    served = start_server(workers=0, timeout_s=0.3, max_queue=2)
    assert served.apply("sleep", 5.0).problem["code"] == "call_timeout"
    waiting = [served.in_background() for _ in range(5)]  # two of them wait, in vain
    codes = [call.result().problem["code"] for call in waiting]
    # Where the machine is busy, some come when others have left.
    assert set(codes) <= {"call_timeout", "queue_full"}
    assert codes.count("call_timeout") >= 2
    assert served.get("/health").status == 200
    wait_until(lambda: served.apply().status == 200)
    served.stop()


def test_a_forked_child_does_not_answer(any_served):
    """`os.fork` returns twice; the child's answer was taken for its parent's, or for the next one."""
    for _ in range(3):
        for action, y in (("fork", [2.0, 4.0]), ("fork_raise", [1.0]), ("double", [2.0, 4.0])):
            np.testing.assert_array_equal(any_served.apply(action).tree["y"], y)
    pids = {int(any_served.apply("fork_later", seconds=0.02).tree["pid"]) for _ in range(12)}
    for _ in range(12):
        answer = any_served.apply(x=[3.0])
        np.testing.assert_array_equal(answer.tree["y"], [6.0])
        pids.add(int(answer.tree["pid"]))
    assert len(pids) == 1, "a child has become a worker"


def test_processes_of_an_author_can_be_ended(any_served):
    """`multiprocessing` ends them by SIGTERM and waits for that; the server's own handlers are not theirs."""
    for _ in range(5):
        found = any_served.apply("fork_pool").tree["y"]
        np.testing.assert_array_equal(found, [-signal.SIGTERM])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_child_forked_while_a_component_is_loaded_does_not_serve(
    start_server, tmp_path, component_path, workers
):
    source = tmp_path / "component.py"
    forks = "import os\nif os.fork():\n    os.wait()\n"
    source.write_text(forks + Path(component_path).read_text().replace("from __future__", "#"))
    served = start_server(components=str(source), workers=workers)
    assert {int(served.apply().tree["pid"]) for _ in range(8)} == {int(served.apply().tree["pid"])}
    served.stop()


def test_a_forked_child_of_a_component_in_its_own_process(component_path):
    with Component.from_source(component_path) as component:
        for action in ("fork", "fork_later", "double", "double"):
            found = component.apply({"x": [1.0, 2.0], "action": action, "seconds": 0.01})
            np.testing.assert_array_equal(found["y"], [2.0, 4.0])


def test_a_signal_of_somebody_else_cancels_nothing(single, component_path, tmp_path, wait_until):
    """SIGUSR1 is how a server breaks off a call; batch systems and authors send it for their own reasons."""
    np.testing.assert_array_equal(single.apply("usr1").tree["y"], [2.0, 4.0])
    gate = tmp_path / "gate"
    call = single.in_background(f"until {gate}")
    wait_until(lambda: single.is_running)
    (worker,) = json.loads(single.get("/status").body)["workers"]
    os.kill(worker["pid"], signal.SIGUSR1)
    gate.touch()
    assert call.result().status == 200
    with Component.from_source(component_path) as component:
        found = component.apply({"x": [1.0, 2.0], "action": "usr1"})
        np.testing.assert_array_equal(found["y"], [2.0, 4.0])
