"""A pool on a cluster of three nodes. Run by `test_ray.py`, in a network of its own."""

import contextlib
import json
import pickle
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from chainrule._errors import ComponentError, DefinitionError, InputError, TransportError
from chainrule.client import Component
from chainrule.deploy import ray as pools

SOURCE = Path(__file__).with_name("pool_component.py")


def point(k):
    return {"x": [float(k), 1.0]}


def value(k):
    return float(k) ** 2 + 1.0


@pytest.fixture(scope="module")
def pool(ray_cluster):
    component = pools.deploy(SOURCE, replicas=2, name="squares")
    yield component
    component.close()
    pools.delete("squares")


def settled(component, up):
    deadline = time.monotonic() + 120
    while True:
        states = [replica["state"] for replica in component.health()["replicas"]]
        if sum(state in ("idle", "busy") for state in states) >= up:
            return
        assert time.monotonic() < deadline, states
        time.sleep(0.05)


def test_eight_gradients_in_parallel_go_where_their_forward_pass_ran(pool):
    before = pool.transport.status()["affinity"]["hits"]
    gradients = {}

    def work(k):
        x = np.array([k, 0.5, -k])
        pool.apply({"x": x})
        gradients[k] = pool.vector_jacobian_product({"x": x}, ["x", "here"], ["y"], {"y": 3.0})

    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, gradient in gradients.items():
        np.testing.assert_array_equal(gradient["x"], 6.0 * np.array([k, 0.5, -k]))
        assert gradient["here"] == 1.0
    assert len(gradients) == 8
    assert pool.transport.status()["affinity"]["hits"] == before + 8


def test_vmap_and_grad_fan_out(pool):
    import jax

    from chainrule.bridge import apply_component

    with jax.enable_x64(True):
        xs = jax.numpy.arange(24.0).reshape(8, 3) + 0.25
        grad = jax.grad(lambda x: apply_component(pool, {"x": x})["y"])
        np.testing.assert_array_equal(jax.jit(jax.vmap(grad))(xs), 2 * xs)
        slow = jax.vmap(lambda x: apply_component(pool, {"x": x, "action": "sleep 0.02"})["pid"])
        assert len(set(np.asarray(slow(xs)).tolist())) == 2


def test_map_keeps_the_order_and_parts_of_it_survive_errors(pool):
    results = list(pool.map(point(k) for k in range(300)))
    assert [result["y"] for result in results] == [value(k) for k in range(300)]
    actions = {3: "raise", 7: "sleep 0.3"}
    inputs = [point(k) | {"action": actions.get(k, "")} for k in range(100)]
    outcomes = list(pool.map_outcomes(inputs))
    assert [outcome.index for outcome in outcomes] != list(range(100))
    assert [outcome.index for outcome in outcomes if outcome.error] == [3]
    assert sorted(o.result["y"] for o in outcomes if not o.error) == [
        value(k) for k in range(100) if k != 3
    ]


def test_a_poisonous_input_takes_nobody_else_along(pool):
    inputs = [point(k) | {"action": "exit" if k == 20 else "sleep 0.001"} for k in range(200)]
    outcomes = list(pool.map_outcomes(inputs, ordered=True))
    failed = [outcome for outcome in outcomes if outcome.error]
    assert [(outcome.index, outcome.error.code) for outcome in failed] == [(20, "poison_input")]
    assert isinstance(failed[0].error, InputError)
    assert [o.result["y"] for o in outcomes if not o.error] == [
        value(k) for k in range(200) if k != 20
    ]
    settled(pool, 2)


def test_arrays_go_by_reference_and_come_without_a_copy(pool):
    import ray

    x = np.random.default_rng(0).random(200_000)
    reference = ray.put(x)
    assert pool.apply({"x": reference})["y"] == pytest.approx(np.sum(x**2), rel=1e-12)
    gradient = pool.vector_jacobian_product({"x": reference}, ["x", "here"], ["y"], {"y": 1.0})
    np.testing.assert_array_equal(gradient["x"], 2 * x)
    assert gradient["here"] == 1.0
    assert not gradient["x"].flags.owndata
    assert not gradient["x"].flags.writeable


def test_a_job_says_how_far_it_is(pool):
    heard = []
    job = pool.submit("apply", point(2) | {"action": "progress 1.5"})
    assert job.result(60, progress=lambda *word: heard.append(word))["y"] == value(2)
    assert (0.5, "half way") in heard


def begun(component):
    """Wait until a replica is at a call."""
    while all(replica["state"] != "busy" for replica in component.health()["replicas"]):
        time.sleep(0.02)
    time.sleep(0.3)


def test_a_call_that_runs_can_be_given_up(ray_cluster):
    with pools.deploy(SOURCE, replicas=1) as component:
        # The last one keeps even its own process from noticing, and is ended from outside.
        for action, is_same_process in (("sleep 60", 1), ("native", 0), ("hold 60", 0)):
            pid = component.apply(point(1))["pid"]
            job = component.submit("apply", point(2) | {"action": action})
            begun(component)
            behind = component.submit("apply", point(3))
            job.cancel()
            with pytest.raises(TransportError) as caught:
                job.result(timeout=20)
            assert caught.value.code == "cancelled"
            # Whoever waited behind it gets an answer all the same, if need be from a new process.
            answer = behind.result(timeout=60)
            assert (answer["y"], answer["pid"] == pid) == (value(3), is_same_process)
        # One that waits is given up alone.
        job = component.submit("apply", point(2) | {"action": "sleep 1.5"})
        begun(component)
        behind = component.submit("apply", point(3))
        behind.cancel()
        with pytest.raises(TransportError) as caught:
            behind.result(timeout=20)
        assert caught.value.code == "cancelled"
        assert job.result(timeout=20) == {"y": value(2), "pid": answer["pid"]}


def test_others_attach_by_name(pool):
    import ray

    with Component.from_cluster("squares") as other:
        assert other.apply(point(2))["y"] == value(2)
        assert other.name == pool.name
    assert pool.apply(point(3))["y"] == value(3)  # a handle that closes leaves the pool alone
    sent = ray.remote(num_cpus=0)(lambda handle: handle.apply(point(4))["y"]).remote(pool)
    assert ray.get(sent) == value(4)
    with pytest.raises(TransportError) as caught:
        Component.from_cluster("circles")
    assert caught.value.code == "no_such_pool"
    with pytest.raises(InputError) as taken:
        pools.deploy(SOURCE, name="squares")
    assert taken.value.code == "pool_exists"


def test_a_pool_with_a_name_outlives_its_maker_and_its_keeper(ray_cluster):
    import ray

    maker = "from chainrule.deploy.ray import deploy; import sys; deploy(**eval(sys.argv[1]))"
    order = {"component": str(SOURCE), "name": "left", "address": ray_cluster.address}
    subprocess.run([sys.executable, "-c", maker, repr(order)], check=True, timeout=60)
    with Component.from_cluster("left") as component:
        assert component.apply(point(2))["y"] == value(2)
        ray.kill(ray.get_actor("left", namespace="chainrule"), no_restart=False)
        results = component.map(point(k) | {"action": "sleep 0.01"} for k in range(100))
        assert [result["y"] for result in results] == [value(k) for k in range(100)]
    pools.delete("left")
    with pytest.raises(TransportError) as caught:
        Component.from_cluster("left")
    assert caught.value.code == "no_such_pool"


def test_what_cannot_be_deployed(ray_cluster, tmp_path):
    with pytest.raises(DefinitionError):
        pools.deploy(tmp_path / "nothing.py")
    with pytest.raises(TransportError) as caught:
        pools.deploy(SOURCE, resources={"telescope": 1}, startup_timeout=1)
    assert caught.value.code == "pool_unavailable"


def test_calls_that_must_not_run_twice_and_calls_that_take_too_long(ray_cluster, tmp_path):
    with pools.deploy(SOURCE, idempotent=False, timeout=3) as component:
        trap = tmp_path / "trap"
        trap.touch()
        with pytest.raises(TransportError) as caught:
            component.apply(point(1) | {"action": f"exit_once {trap}"})
        assert caught.value.code == "replica_lost"
        with pytest.raises(TransportError) as caught:
            component.apply(point(1) | {"action": "sleep 30"})
        assert caught.value.code == "call_timeout"
        assert component.apply(point(1))["y"] == value(1)


def test_the_pool_follows_its_load(ray_cluster):
    with pools.deploy(SOURCE, autoscale=(1, 2), quiet=0.5) as component:
        assert len(component.health()["replicas"]) == 1
        results = component.map(
            (point(k) | {"action": "sleep 0.05"} for k in range(1000)), max_in_flight=4
        )
        pids = set()
        while len(pids) < 2:
            pids.add(next(results)["pid"])
        results.close()
        deadline = time.monotonic() + 30
        while len(component.health()["replicas"]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert component.apply(point(1))["y"] == value(1)


@contextlib.contextmanager
def served(*arguments):
    """The URL of `chainrule serve` on the same cluster."""
    command = [sys.executable, "-m", "chainrule", "serve", *arguments, "--port=0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _follow_job(url, request):
    """The fractions that a job reports on its way to success."""
    body = json.dumps(request).encode()
    headers = {"Content-Type": "application/json"}
    post = urllib.request.Request(f"{url}/apply?wait=false", body, headers)
    seen = set()
    with urllib.request.urlopen(post) as answer:
        place = url + answer.headers["Location"]
    while True:
        with urllib.request.urlopen(place) as answer:
            job = json.load(answer)
        seen.add(job["fraction"])
        if job["state"] not in ("queued", "running"):
            assert job["state"] == "succeeded", job
            return seen - {None}
        time.sleep(0.05)


def test_two_servers_in_front_of_one_pool(pool, ray_cluster):
    engine = ["--engine", "ray", "--ray-address", ray_cluster.address]
    with served("pool:squares", *engine) as one, served("pool:squares", *engine) as two:
        for url in (one, two):
            with Component.from_url(url) as component:
                assert component.name == pool.name
                results = component.map([point(k) for k in range(20)])
                assert [result["y"] for result in results] == [value(k) for k in range(20)]
                x = np.arange(30_000.0) + (url == one)  # 240 kB: by reference
                component.apply({"x": x})
                arguments = {"x": x}, ["x", "here"], ["y"], {"y": 1.0}
                gradient = component.vector_jacobian_product(*arguments)
                np.testing.assert_array_equal(gradient["x"], 2 * x)
                assert gradient["here"] == 1.0
                with pytest.raises(ComponentError, match="mesh is empty"):
                    component.apply(point(1) | {"action": "raise"})
                with pytest.raises(InputError):
                    component.apply({"x": "nothing"})
    assert pool.apply(point(3))["y"] == value(3)  # servers leave the pool behind


def test_a_server_with_a_pool_of_its_own(ray_cluster):
    engine = ["--engine", "ray", "--ray-address", ray_cluster.address]
    with served(str(SOURCE), "--workers=1", *engine) as url, Component.from_url(url) as component:
        assert component.apply(point(5))["y"] == value(5)
        inputs = point(6) | {"action": "progress 1.0"}
        assert _follow_job(url, {"inputs": inputs}) == {0.5, 1.0}
        pid = component.apply(point(5))["pid"]
        job = component.submit("apply", point(6) | {"action": "progress 60"})
        while not job.fraction:
            time.sleep(0.05)
        job.cancel()
        assert component.apply(point(7)) == {"y": value(7), "pid": pid}


def test_handles_are_small(pool):
    assert len(pickle.dumps(pool.transport._plan)) < 10_000


# Last, because it leaves the cluster with one node less.
def test_a_thousand_evaluations_survive_the_loss_of_a_node(ray_cluster, tmp_path):
    gate = tmp_path / "gate"
    with (
        pools.deploy(SOURCE, replicas=4) as component,
        pools.deploy(SOURCE, replicas=4, idempotent=False) as once,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(gate.touch)  # whatever fails: nobody waits for ever
        inputs = (point(k) | {"action": "sleep 0.002"} for k in range(1000))
        results = component.map(inputs, max_in_flight=32)
        found = [next(results)["y"] for _ in range(500)]
        jobs = [once.submit("apply", point(k) | {"action": f"wait {gate}"}) for k in range(4)]
        begun(once)
        ray_cluster.remove_node(ray_cluster.list_all_nodes()[-1], allow_graceful=False)
        found += [result["y"] for result in results]
        assert found == [value(k) for k in range(1000)]
        settled(component, 4)
        gate.touch()
        # Calls that must not run twice are reported, those on the other node are answered.
        outcomes = [outcome(job) for job in jobs]
        assert "replica_lost" in outcomes
        assert all(end in ("replica_lost", value(k)) for k, end in enumerate(outcomes))
        assert once.transport.status()["repeated"] == 0


def outcome(job):
    try:
        return job.result(timeout=60)["y"]
    except TransportError as error:
        return error.code
