"""A pool on a cluster of three nodes. Run by `test_ray.py`, in a network of its own."""

import contextlib
import itertools
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

from chainrule.client import Component
from chainrule.deploy import ray as pools
from chainrule.errors import ComponentError, DefinitionError, InputError, TransportError

SOURCE = Path(__file__).with_name("pool_component.py")
HANG_S = 600  # every limit of this suite only ends what hangs; how long things take is not tested


def deploy(**settings):
    return pools.deploy(SOURCE, startup_timeout=HANG_S, **settings)


def point(k):
    return {"x": [float(k), 1.0]}


def value(k):
    return float(k) ** 2 + 1.0


@pytest.fixture(scope="module")
def pool(ray_cluster):
    component = deploy(replicas=2, name="squares")
    yield component
    component.close()
    pools.delete("squares")


def until(is_so, what):
    """Wait for something that happens in other processes."""
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def settled(component, up):
    def is_up():
        states = [replica["state"] for replica in component.health()["replicas"]]
        return sum(state in ("idle", "busy") for state in states) >= up

    until(is_up, f"{up} replicas that are up")


def test_gradients_go_where_their_forward_pass_ran(pool):
    before = pool.transport.status()["affinity"]["hits"]
    points = [np.array([float(k), 0.5, -float(k)]) for k in range(8)]
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
        slow = jax.vmap(lambda x: apply_component(pool, {"x": x, "action": "sleep 0.02"})["pid"])
        assert len(set(np.asarray(slow(xs)).tolist())) == 2


def test_map_keeps_the_order_and_parts_of_it_survive_errors(pool, tmp_path):
    results = list(pool.map(point(k) for k in range(300)))
    assert [result["y"] for result in results] == [value(k) for k in range(300)]
    gate = tmp_path / "gate"
    actions = {3: "raise", 7: f"wait {gate}"}
    inputs = [point(k) | {"action": actions.get(k, "")} for k in range(100)]
    outcomes = []
    for outcome in pool.map_outcomes(inputs):
        outcomes.append(outcome)
        if outcome.index > 7:  # which was not waited for
            gate.touch()
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


def test_a_job_says_how_far_it_is(pool, tmp_path):
    heard, gate = [], tmp_path / "gate"

    def hear(*word):
        heard.append(word)
        gate.touch()

    job = pool.submit("apply", point(2) | {"action": f"progress {gate}"})
    assert job.result(HANG_S, progress=hear)["y"] == value(2)
    assert (0.5, "half way") in heard


def begun(path):
    """Wait until a call has begun; returns the node that it runs on."""
    until(path.exists, f"a call that says in {path.name} that it has begun")
    return path.read_text()


def test_a_call_that_runs_can_be_given_up(ray_cluster, tmp_path):
    with deploy(replicas=1) as component:
        # The last one keeps even its own process from noticing, and is ended from outside.
        for action, is_same_process in (("sleep 3600", 1), ("native", 0), ("hold 3600", 0)):
            pid = component.apply(point(1))["pid"]
            began = tmp_path / action.replace(" ", "-")
            job = component.submit("apply", point(2) | {"action": action, "began": str(began)})
            begun(began)
            behind = component.submit("apply", point(3))
            job.cancel()
            with pytest.raises(TransportError) as caught:
                job.result(timeout=HANG_S)
            assert caught.value.code == "cancelled"
            # Callers that waited behind it get an answer too, if necessary from a new process.
            answer = behind.result(timeout=HANG_S)
            assert (answer["y"], answer["pid"] == pid) == (value(3), is_same_process)
        # One that waits is given up alone.
        gate, began = tmp_path / "gate", tmp_path / "began"
        job = component.submit("apply", point(2) | {"action": f"wait {gate}", "began": str(began)})
        begun(began)
        behind = component.submit("apply", point(3))
        behind.cancel()
        with pytest.raises(TransportError) as caught:
            behind.result(timeout=HANG_S)
        assert caught.value.code == "cancelled"
        gate.touch()
        assert job.result(timeout=HANG_S) == {"y": value(2), "pid": answer["pid"]}


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
    subprocess.run([sys.executable, "-c", maker, repr(order)], check=True, timeout=HANG_S)
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


def test_calls_that_must_not_run_twice(ray_cluster, tmp_path):
    with deploy(idempotent=False) as component:
        trap = tmp_path / "trap"
        trap.touch()
        with pytest.raises(TransportError) as caught:
            component.apply(point(1) | {"action": f"exit_once {trap}"})
        assert caught.value.code == "replica_lost"
        assert component.apply(point(1))["y"] == value(1)


def test_calls_that_take_too_long(ray_cluster):
    with deploy(timeout=1) as component:
        with pytest.raises(TransportError) as caught:
            component.apply(point(1) | {"action": "sleep 3600"})
        assert caught.value.code == "call_timeout"

        def answers():
            try:
                return component.apply(point(1))["y"] == value(1)
            except TransportError:  # the machine is busy, and this call took too long as well
                return False

        until(answers, "an answer of the replica that was started again")


def test_the_pool_follows_its_load(ray_cluster):
    with deploy(autoscale=(1, 2), quiet=0.5) as component:
        assert len(component.health()["replicas"]) == 1
        calls = (point(k) | {"action": "sleep 0.05"} for k in itertools.count())
        results = component.map(calls, max_in_flight=4)
        pids = set()
        until(lambda: pids.add(next(results)["pid"]) or len(pids) == 2, "a second process")
        results.close()
        until(lambda: len(component.health()["replicas"]) == 1, "a pool that has shrunk")
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
        process.wait(HANG_S)
        process.stdout.close()


def _follow_job(url, request, gate):
    """The fractions that a job, which waits for the gate half way, reports on its way to success."""
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
        if job["fraction"] == 0.5:
            gate.touch()
        if job["state"] not in ("queued", "running"):
            assert job["state"] == "succeeded", job
            return seen - {None}
        time.sleep(0.05)


def post(url, content):
    request = urllib.request.Request(url, json.dumps(content).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_two_servers_in_front_of_one_pool(pool, ray_cluster):
    engine = ["--engine", "ray", "--ray-address", ray_cluster.address, "--umbridge"]
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
                for k in range(8):  # the gradient of `here` is 1 where the forward pass ran
                    body = {
                        "name": pool.name,
                        "input": [[k, 1.0], [0.0]],
                        "config": {"shapes": {"x": [2]}},
                    }
                    assert post(f"{url}/Evaluate", body)["output"] == [[k**2 + 1.0]]
                    body |= {"outWrt": 0, "inWrt": 1, "sens": [1.0]}
                    assert post(f"{url}/Gradient", body)["output"] == [1.0]
    assert pool.apply(point(3))["y"] == value(3)  # servers leave the pool behind


def test_a_server_with_a_pool_of_its_own(ray_cluster, tmp_path):
    engine = ["--engine", "ray", "--ray-address", ray_cluster.address]
    with served(str(SOURCE), "--workers=1", *engine) as url, Component.from_url(url) as component:
        assert component.apply(point(5))["y"] == value(5)
        gate = tmp_path / "gate"
        inputs = point(6) | {"action": f"progress {gate}"}
        assert _follow_job(url, {"inputs": inputs}, gate) == {0.5, 1.0}
        pid = component.apply(point(5))["pid"]
        never = tmp_path / "never"
        job = component.submit("apply", point(6) | {"action": f"progress {never}"})
        until(lambda: job.fraction, "a job that has begun")
        job.cancel()
        assert component.apply(point(7)) == {"y": value(7), "pid": pid}


def test_handles_are_small(pool):
    assert len(pickle.dumps(pool.transport._plan)) < 10_000


def places_of(component, folder):
    """The nodes that have replicas of a pool; not always all of them."""
    inputs = [point(k) | {"began": str(folder / str(k))} for k in range(32)]
    list(component.map(inputs))
    return {path.read_text() for path in folder.iterdir()}


# Last, because it leaves the cluster with one node less.
def test_a_thousand_evaluations_survive_the_loss_of_a_node(ray_cluster, tmp_path):
    gate, folder = tmp_path / "gate", tmp_path / "places"
    folder.mkdir()
    with (
        deploy(replicas=4) as component,
        deploy(replicas=4, idempotent=False) as once,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(gate.touch)  # on failures too: no call waits for ever
        places = places_of(component, folder)
        inputs = (point(k) | {"action": "sleep 0.002"} for k in range(1000))
        results = component.map(inputs, max_in_flight=32)
        found = [next(results)["y"] for _ in range(500)]
        jobs, homes = [], []
        for k in range(4):
            began = tmp_path / f"began{k}"
            inputs = point(k) | {"action": f"wait {gate}", "began": str(began)}
            jobs.append(once.submit("apply", inputs))
            homes.append(begun(began))
        # A node where the loss is felt by both pools if there is one; by the second one in any case.
        lost = min(homes, key=lambda home: home not in places)
        (node,) = (node for node in ray_cluster.list_all_nodes() if node.node_id == lost)
        assert node is not ray_cluster.head_node, "the head has no room for replicas"
        ray_cluster.remove_node(node, allow_graceful=False)
        found += [result["y"] for result in results]
        assert found == [value(k) for k in range(1000)]
        settled(component, 4)
        # Calls that must not run twice are reported, those on the other node are answered. A process of the
        # lost node may live on for a while, so the gate stays closed until its calls have ended.
        lost_jobs = [job for job, home in zip(jobs, homes, strict=True) if home == lost]
        assert [outcome(job) for job in lost_jobs] == ["replica_lost"] * len(lost_jobs)
        gate.touch()
        others = [(job, value(k)) for k, job in enumerate(jobs) if job not in lost_jobs]
        assert all(outcome(job) == expected for job, expected in others)
        assert once.transport.status()["repeated"] == 0


def outcome(job):
    try:
        return job.result(timeout=HANG_S)["y"]
    except TransportError as error:
        return error.code
