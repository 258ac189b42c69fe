"""`Component.submit` against a server: the server has the job, the client follows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from chainrule.client import Component, Transport
from chainrule.errors import (
    CapabilityError,
    ComponentError,
    InputError,
    NotGrantedError,
    TransportError,
)

HERE = Path(__file__).parent
JOB_COMPONENT = str(HERE / "job_component.py")


@pytest.fixture(scope="module")
def served(start_server):
    return start_server(components=JOB_COMPONENT, workers=1)


@pytest.fixture
def component(served):
    with Component.from_url(served.url) as found:
        yield found


def test_result_progress_and_log(component):
    job = component.submit("apply", {"x": [1.0, 2.0], "action": "steps"}, run_id="mine")
    reports = []
    result = job.result(60, progress=lambda *report: reports.append(report))
    np.testing.assert_array_equal(result["y"], [2.0, 4.0])
    assert reports[-1] == (1.0, "step 3")
    assert (job.status, job.done, job.fraction, job.message) == ("done", True, 1.0, "step 3")
    assert repr(job) == "<Job apply: done>"
    assert job.info.run_id == "mine"
    assert [line for line in job.log.splitlines() if line.startswith("step")] == [
        f"step {k}" for k in range(4)
    ]
    lines = [event.line for event in job.events() if event.kind == "log"]
    assert lines == job.log.splitlines()


def test_how_a_job_looks_whose_server_is_gone(component, monkeypatch):
    def is_gone(*args):
        raise TransportError("no server is there", code="unreachable")

    job = component.submit("apply", {"x": [1.0], "action": "steps"})
    monkeypatch.setattr(job._server, "_exchange", is_gone)
    assert repr(job).startswith("<Job apply: ")
    assert repr(job).endswith(" when its server was last heard of>")
    with pytest.raises(TransportError):
        _ = job.status


def test_how_a_component_looks_that_is_closed_to_us():
    class Guarded(Transport):
        place = "elsewhere"

        def describe(self):
            raise NotGrantedError("a token is missing")

        call = health = close = describe

    assert Component(Guarded())._repr_html_() is None


def test_a_job_is_found_again_by_another_process(served, component):
    job = component.submit("apply", {"x": [3.0]})
    with Component.from_url(served.url) as other:
        np.testing.assert_array_equal(other.job(job.id).result(300)["y"], [6.0])
        with pytest.raises(CapabilityError) as caught:
            other.job("nothing")
    assert caught.value.code == "job_unknown"


def test_errors_are_those_of_the_call(component):
    with pytest.raises(ComponentError, match="mesh is empty"):
        component.submit("apply", {"x": [1.0], "action": "raise"}).result(300)
    refused = component.submit("apply", {"x": "text"})
    with pytest.raises(InputError):
        refused.result(300)
    assert refused.status == "failed"
    died = component.submit("apply", {"x": [1.0], "action": "exit"})
    with pytest.raises(TransportError) as caught:
        died.result(300)
    assert caught.value.code == "worker_crashed"
    assert "about to fall" in died.log


def test_timeouts_and_cancelling(component, tmp_path):
    told = tmp_path / "told"
    job = component.submit("apply", {"x": [1.0], "action": "until_told", "label": str(told)})
    with pytest.raises(TimeoutError):
        job.result(0.05)
    told.touch()
    np.testing.assert_array_equal(job.result(300)["y"], [2.0])
    stuck = component.submit("apply", {"x": [1.0], "action": "stuck"})
    stuck.cancel()
    assert stuck.status == "cancelled"
    with pytest.raises(TransportError) as caught:
        stuck.result(300)
    assert caught.value.code == "cancelled"


def test_await(component, wait_until):
    async def work():
        job = component.submit("apply", {"x": [2.0]})
        stuck = component.submit("apply", {"x": [1.0], "action": "stuck"})
        task = asyncio.ensure_future(_wait(stuck))
        result = await job
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return result, stuck

    result, stuck = asyncio.run(work())
    np.testing.assert_array_equal(result["y"], [4.0])
    wait_until(lambda: stuck.status == "cancelled")


async def _wait(job):
    return await job


def test_waiting_outlasts_a_restart_of_the_server(start_server, tmp_path, wait_until):
    """The port stays, the server is another one: what waits is answered by it."""
    settings = {"components": JOB_COMPONENT, "workers": 1, "jobs_folder": str(tmp_path / "jobs")}
    first = start_server(**settings)
    port = int(first.netloc.rpartition(":")[2])
    with Component.from_url(first.url) as component:
        blocker = component.submit("apply", {"x": [1.0], "action": "stuck"})
        waiting = component.submit("apply", {"x": [5.0]})
        # Otherwise the next server runs it, and its only worker is not free again.
        wait_until(lambda: blocker.status == "running")
        first.process.kill()
        first.process.wait()
        start_server(**settings, port=port)
        np.testing.assert_array_equal(waiting.result(300)["y"], [10.0])
        with pytest.raises(TransportError) as caught:
            blocker.result(300)
        assert caught.value.code == "server_stopped"


def test_progress_of_a_finite_difference_jacobian_reaches_the_bar(
    start_server, monkeypatch, capsys
):
    """The bar of `result(progress=True)` is moved by the evaluations in the worker, and only forwards."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    served = start_server(components=f"{HERE / 'finite_component.py'}:squares", workers=1)
    x = np.arange(1.0, 21.0)
    with Component.from_url(served.url) as component:
        job = component.submit("jacobian", {"x": x}, ["x"], ["result"])
        result = job.result(60, progress=True)
        np.testing.assert_allclose(result["result"]["x"], np.diag(2 * x), atol=1e-6)
        fractions = [e.job.fraction for e in job.events() if e.kind == "progress"]
        reports = []
        again = component.submit("jacobian", {"x": x + 1}, ["x"], ["result"])
        again.result(60, progress=lambda *report: reports.append(report))
    assert fractions == sorted(fractions)
    bar = capsys.readouterr().err
    assert "jacobian" in bar
    assert "100%" in bar
    moved = {fraction for fraction, message in reports if 0.0 < fraction < 1.0}
    assert len(moved) >= 3, "the bar moved while the Jacobian was computed"
    assert reports[-1][0] == 1.0
