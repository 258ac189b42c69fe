"""A pool of processes: calls run in parallel, and no answer is lost when a process dies."""

import itertools
import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from chainrule.deploy import local
from chainrule.errors import ComponentError, DefinitionError, InputError, TransportError
from waiting import wait_until

SOURCE = Path(__file__).with_name("pool_component.py")
HANG_S = 300  # every limit here only ends what hangs; how long things take is not tested


@pytest.fixture(scope="module")
def pool():
    with local.deploy(SOURCE, replicas=2) as component:
        yield component


def point(k):
    return {"x": [float(k), 1.0]}


def value(k):
    return float(k) ** 2 + 1.0


def settled(component, up=2):
    """Wait until so many replicas are up again."""

    def is_up():
        states = [replica["state"] for replica in component.health()["replicas"]]
        return sum(state in ("idle", "busy") for state in states) == up

    wait_until(is_up, f"{up} replicas that are up")


def test_processes_end_with_a_pool_that_nobody_holds():
    component = local.deploy(SOURCE, autoscale=(1, 2))
    pid = component.apply(point(1))["pid"]
    assert Path(f"/proc/{pid}").exists()
    del component
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process")


def test_both_processes_work_and_results_keep_the_order(pool):
    results = list(pool.map([point(k) | {"action": "sleep 0.01"} for k in range(30)]))
    assert [result["y"] for result in results] == [value(k) for k in range(30)]
    assert len({result["pid"] for result in results}) == 2
    assert os.getpid() not in {result["pid"] for result in results}


def test_results_as_they_come(pool, tmp_path):
    gate = tmp_path / "gate"
    inputs = [point(k) | {"action": f"wait {gate}" if k == 0 else ""} for k in range(10)]
    results = []
    for result in pool.map(inputs, ordered=False):
        gate.touch()  # the first input is answered only after another one was
        results.append(result["y"])
    assert results[0] != value(0)
    assert sorted(results) == [value(k) for k in range(10)]


def test_a_failing_input_costs_only_its_own_result(pool):
    inputs = [point(k) | {"action": "raise" if k == 3 else ""} for k in range(8)]
    outcomes = list(pool.map_outcomes(inputs))
    assert sorted(outcome.index for outcome in outcomes) == list(range(8))
    for outcome in outcomes:
        if outcome.index == 3:
            assert isinstance(outcome.error, ComponentError)
            with pytest.raises(ComponentError, match="mesh is empty"):
                outcome.unwrap()
        else:
            assert outcome.unwrap()["y"] == value(outcome.index)


def test_a_poisonous_input_takes_nobody_else_along(pool):
    inputs = [point(k) | {"action": "exit" if k == 5 else "sleep 0.05"} for k in range(40)]
    outcomes = list(pool.map_outcomes(inputs, ordered=True))
    failed = [outcome for outcome in outcomes if outcome.error]
    assert [outcome.index for outcome in failed] == [5]
    assert isinstance(failed[0].error, InputError)
    assert failed[0].error.code == "poison_input"
    assert failed[0].error.details == {"exit_code": 3, "deaths": 3}
    assert [o.result["y"] for o in outcomes if not o.error] == [
        value(k) for k in range(40) if k != 5
    ]
    settled(pool)


def test_a_call_outlives_its_process(pool, tmp_path):
    for action in range(2):
        trap = tmp_path / f"trap{action}"
        trap.touch()
        assert pool.apply(point(2) | {"action": f"exit_once {trap}"})["y"] == value(2)
        assert not trap.exists()
    settled(pool)


def test_a_process_that_dies_between_calls_is_replaced(pool):
    before = {result["pid"] for result in pool.map([point(k) for k in range(20)])}
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    results = list(pool.map([point(k) for k in range(20)]))
    assert [result["y"] for result in results] == [value(k) for k in range(20)]
    assert not before & {result["pid"] for result in results}
    settled(pool)


def test_a_gradient_goes_where_its_forward_pass_ran(pool):
    before = pool.transport.status()["affinity"]["hits"]
    points = [np.array([float(k), 0.5, -float(k)]) for k in range(100, 108)]
    threads = [threading.Thread(target=pool.apply, args=({"x": x},)) for x in points]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One after the other: a gradient that needs nothing of its replica goes elsewhere where that is full.
    for x in points:
        gradient = pool.vector_jacobian_product({"x": x}, ["x", "here"], ["y"], {"y": 3.0})
        np.testing.assert_array_equal(gradient["x"], 6.0 * x)
        assert gradient["here"] == 1.0
    assert pool.transport.status()["affinity"]["hits"] == before + 8


def test_vmap_and_grad_fan_out(pool):
    import jax

    from chainrule.bridge import apply_component

    with jax.enable_x64(True):
        xs = jax.numpy.arange(24.0).reshape(8, 3) + 0.25
        grad = jax.grad(lambda x: apply_component(pool, {"x": x})["y"])
        np.testing.assert_array_equal(jax.jit(jax.vmap(grad))(xs), 2 * xs)
        pids = jax.vmap(lambda x: apply_component(pool, {"x": x, "action": "sleep 0.02"})["pid"])(
            xs
        )
    assert len(set(np.asarray(pids).tolist())) == 2


def test_a_call_that_waits_can_be_given_up(pool, tmp_path):
    gate = tmp_path / "gate"
    busy = [pool.submit("apply", point(k) | {"action": f"wait {gate}"}) for k in range(2)]
    behind = pool.submit("apply", point(9))
    behind.cancel()
    with pytest.raises(TransportError) as caught:
        behind.result(timeout=HANG_S)
    assert caught.value.code == "cancelled"
    gate.touch()
    assert [job.result(timeout=HANG_S)["y"] for job in busy] == [value(0), value(1)]


def test_a_call_that_runs_can_be_given_up(pool, tmp_path):
    def processes():
        inputs = [point(k) | {"action": "sleep 0.01"} for k in range(20)]
        return {result["pid"] for result in pool.map(inputs)}

    for action, is_same_process in (("sleep 3600", True), ("native", False)):
        before = processes()
        began = tmp_path / action.replace(" ", "-")
        job = pool.submit("apply", point(2) | {"action": action, "began": str(began)})
        wait_until(began.exists, "a call that has begun")
        job.cancel()
        with pytest.raises(TransportError) as caught:
            job.result(timeout=HANG_S)
        assert caught.value.code == "cancelled"
        settled(pool)
        assert (processes() == before) is is_same_process


def test_calls_that_must_not_run_twice(tmp_path):
    with local.deploy(SOURCE, replicas=1, idempotent=False) as component:
        trap = tmp_path / "trap"
        trap.touch()
        with pytest.raises(TransportError) as caught:
            component.apply(point(1) | {"action": f"exit_once {trap}"})
        assert caught.value.code == "replica_lost"
        assert caught.value.details == {"exit_code": 3}
        pid = component.apply(point(1))["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _has_ended(pid), "the end of the process")
        assert component.apply(point(1))["y"] == value(1)  # which did not run twice


def _has_ended(pid):
    """Whether a child has ended, with all its threads; it is left for the pool to ask how."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the pool has asked already
        return True


def test_calls_that_take_too_long():
    with local.deploy(SOURCE, replicas=1, timeout=0.5) as component:
        with pytest.raises(TransportError) as caught:
            component.apply(point(1) | {"action": "sleep 3600"})
        assert caught.value.code == "call_timeout"

        def answers():
            try:
                return component.apply(point(1))["y"] == value(1)
            except TransportError:  # the machine is busy, and this call took too long as well
                return False

        wait_until(answers, "an answer of the process that was started again")


def test_a_queue_makes_the_pool_grow():
    with local.deploy(SOURCE, autoscale=(1, 2)) as component:
        assert len(component.health()["replicas"]) == 1
        calls = (point(k) | {"action": "sleep 0.05"} for k in itertools.count())
        results = component.map(calls, max_in_flight=4)
        pids = set()
        wait_until(lambda: pids.add(next(results)["pid"]) or len(pids) == 2, "a second process")
        results.close()
    with pytest.raises(TransportError) as caught:
        component.apply(point(1))
    assert caught.value.code == "closed"


def test_what_cannot_be_deployed(tmp_path):
    with pytest.raises(DefinitionError):
        local.deploy(tmp_path / "nothing.py", replicas=1)
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nos._exit(7)\n")
    with pytest.raises(TransportError, match="status 7"):
        local.deploy(dying, replicas=1)
    with pytest.raises(DefinitionError) as unpicklable:
        local.deploy(lambda x: x)
    assert unpicklable.value.code == "not_picklable"


@pytest.mark.parametrize(
    "size",
    [
        {"replicas": -1},
        {"replicas": 0},
        {"replicas": "2"},
        {"replicas": 1.5},
        {"autoscale": (0, 2)},
        {"autoscale": (3, 2)},
        {"autoscale": 3},
        {"autoscale": (1, 2, 3)},
    ],
    ids=str,
)
def test_impossible_sizes(size):
    ((name, value),) = size.items()
    with pytest.raises(InputError, match=re.escape(f"{name}={value!r}")) as caught:
        local.deploy(SOURCE, **size)
    assert caught.value.code == "bad_pool_size"


def test_settings_are_looked_at_before_anything_is_started(caplog):
    with pytest.raises(InputError) as caught:
        local.deploy(SOURCE, replicas=1, config={"colour": "red"})
    assert caught.value.code == "unknown_setting"
    assert not caplog.records
