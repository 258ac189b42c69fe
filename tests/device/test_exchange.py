"""Arrays on a GPU that go to other processes and back: the fake GPU here, the real one where there is one."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import apply_component
from chainrule._codec import DeviceArray as Declared
from chainrule._device_exchange import Place
from chainrule.client import Component
from chainrule.errors import ChainruleError, ComponentError, TransportError
from device.fake import STREAM, UUID, buffers_of, hand_over_buffers
from device.gpu import ON_GPU, SOURCE, serving

KILLED, KILLERS = (100, 8) if ON_GPU else (4, 2)
CALLS = 10_000 if ON_GPU else 200
PROGRAM_SIZES = (10**4, 10**8) if ON_GPU else (50, 10**4)


@pytest.fixture(params=["own process", "served"], scope="module")
def remote(request, gpu):
    with contextlib.ExitStack() as stack:
        if request.param == "served":
            made = Component.from_url(stack.enter_context(serving()))
        else:
            made = Component.from_source(SOURCE)
        yield stack.enter_context(contextlib.closing(made))


def held(component):
    """Exchange buffers of this process for a component, in bytes."""
    return component.transport._devices.link().exchange.pool.held_bytes


X = np.linspace(0.5, 2.0, 60_000).astype("float32")


def test_arrays_stay_on_the_gpu(gpu, remote):
    for number in range(1, 4):
        given = gpu.put(number * X)
        found = remote.apply({"x": given})["y"]
        np.testing.assert_allclose(gpu.get(found), 3 * (number * X) ** 2, rtol=1e-6)
        products = remote.vector_jacobian_product(
            {"x": given, "factor": 2.0}, ["x"], ["y"], {"y": given}
        )
        np.testing.assert_allclose(gpu.get(products["x"]), 4 * (number * X) ** 2, rtol=1e-6)
        np.testing.assert_array_equal(gpu.get(given), number * X)
    # The request, its cotangent, room as large as both, and the check, used again by every call.
    assert held(remote) <= 4 * 2**18 + 2**16


def test_arrays_of_other_sizes_follow(gpu, remote):
    for size in (1, 0, 10, 300_000, 7):
        found = remote.apply({"x": gpu.put(X[:1].repeat(size))})["y"]
        np.testing.assert_allclose(gpu.get(found), np.full(size, 0.75), rtol=1e-6)


def test_arrays_of_the_host_get_answers_there(gpu, remote):
    assert type(remote.apply({"x": X})["y"]) is np.ndarray


def test_callers_by_um_bridge_need_not_know_of_the_gpu(gpu):
    um = pytest.importorskip("umbridge")
    with serving() as url:
        (name, _) = um.supported_models(url)
        model = um.HTTPModel(url, name)
        config = {"shapes": {"x": [3]}}
        assert (model.get_input_sizes(config), model.get_output_sizes(config)) == ([3], [3])
        x, seed = [[0.5, 1.0, 2.0]], [1.0, 2.0, 0.5]
        assert model(x, config) == [[0.75, 3.0, 12.0]]
        assert model.gradient(0, 0, x, seed, config) == [3.0, 12.0, 6.0]
        assert model.apply_jacobian(0, 0, x, seed, config) == [3.0, 12.0, 6.0]
        with pytest.raises(Exception, match="no convergence"):
            model(x, config | {"inputs": {"action": "fail"}})
        assert model(x, config | {"inputs": {"factor": 1.0}}) == [[0.25, 1.0, 4.0]]


def test_an_error_gives_the_memory_back(gpu, remote):
    given = gpu.put(X)
    remote.apply({"x": given})
    before = held(remote)
    for _ in range(5):
        with pytest.raises(ComponentError, match="no convergence"):
            remote.apply({"x": given, "action": "fail"})
    np.testing.assert_allclose(gpu.get(remote.apply({"x": given})["y"]), 3 * X**2, rtol=1e-6)
    assert held(remote) == before


def test_a_killed_worker_leaves_nothing(gpu, remote):
    given = gpu.put(X)
    remote.apply({"x": given})
    before = held(remote)
    for _ in range(2):
        with pytest.raises(TransportError) as caught:
            remote.apply({"x": given, "action": "die"})
        assert caught.value.code == "worker_crashed"
        np.testing.assert_allclose(gpu.get(patiently(remote, given)), 3 * X**2, rtol=1e-6)
    assert held(remote) == before


def patiently(remote, given):
    """The answer of the next worker, which may be on its way."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return remote.apply({"x": given})["y"]
        except TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_many_killed_workers_leave_nothing(gpu):
    with serving(KILLERS) as url, contextlib.closing(Component.from_url(url)) as remote:

        def everybody(work):
            threads = [threading.Thread(target=work) for _ in range(KILLERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        def compute():
            for _ in range(4):
                patiently(remote, gpu.put(X))

        def kill():
            for _ in range(-(-KILLED // KILLERS)):
                with contextlib.suppress(TransportError):
                    remote.apply({"x": gpu.put(X), "action": "die"})
                patiently(remote, gpu.put(X))

        everybody(compute)
        before = held(remote), gpu.used_bytes
        everybody(kill)
        server = remote.transport.server
        while any(worker["state"] == "starting" for worker in server.status()["workers"]):
            time.sleep(0.1)
        everybody(compute)
        assert sum(worker["restarts"] for worker in server.status()["workers"]) >= KILLED
        # At most one call of each thread at a time had memory of its own.
        assert held(remote) <= before[0] + KILLERS * 2**19
        assert gpu.used_bytes <= before[1] + KILLERS * 2**26


def test_many_calls_leave_nothing(gpu, remote):
    given = gpu.put(X[:10_000])
    for _ in range(50):
        remote.apply({"x": given})
    before = held(remote), gpu.used_bytes
    for _ in range(CALLS):
        found = remote.apply({"x": given})["y"]
    np.testing.assert_allclose(gpu.get(found), 3 * X[:10_000] ** 2, rtol=1e-6)
    assert held(remote) == before[0]
    assert gpu.used_bytes <= before[1] + 2**26 * ON_GPU


def test_a_call_without_an_answer_keeps_its_memory_from_others(gpu):
    with serving() as url, contextlib.closing(Component.from_url(url, timeout=5.0)) as remote:
        with contextlib.closing(Component.from_url(url)) as patient:
            patient.apply({"x": gpu.put(X)})  # kernels are compiled
        remote.apply({"x": gpu.put(X)})
        pool = remote.transport._devices.link().exchange.pool
        before = pool.held_bytes
        with pytest.raises(TransportError):
            remote.apply({"x": gpu.put(X), "action": "sleep"})
        taken = pool.take(X.nbytes)
        assert pool.held_bytes > before  # those of the call are not used again
        pool.give_back(taken)


def test_threads_do_not_share_memory(gpu):
    with serving(2) as url, contextlib.closing(Component.from_url(url)) as remote:
        wrong = []

        def work(seed):
            for number in range(8):
                x = X + seed + number
                found = gpu.get(remote.apply({"x": gpu.put(x)})["y"])
                if not np.allclose(found, 3 * x**2, rtol=1e-5):
                    wrong.append((seed, number))

        threads = [threading.Thread(target=work, args=(10 * seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_worker_closes_what_a_killed_client_left(gpu):
    if ON_GPU:
        pytest.skip("the driver does not say who has a buffer open")
    client = (
        "import os, sys; import numpy as np\n"
        "from device.fake import install; library, _ = install()\n"
        "from chainrule.client import Component\n"
        "c = Component.from_url(sys.argv[1]); x = library.from_host(np.ones(9, 'float32'))\n"
        "c.apply({'x': x}); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    with serving() as url:
        process = subprocess.Popen(
            [sys.executable, "-c", client, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        pid = int(process.stdout.readline())
        left = buffers_of(pid)
        worker = next(
            w["pid"] for w in Component.from_url(url).transport.server.status()["workers"]
        )
        maps = Path(f"/proc/{worker}/maps")
        assert left
        assert any(path.name in maps.read_text() for path in left)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
        deadline = time.monotonic() + 60
        while any(path.name in maps.read_text() for path in left):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for path in left:  # which the driver of a GPU does
            path.unlink(missing_ok=True)


def test_another_gpu_means_the_host_and_one_warning(gpu, monkeypatch, caplog):
    if ON_GPU:
        pytest.skip("there is one GPU")
    monkeypatch.setenv("CHAINRULE_FAKE_GPU", UUID.replace("6f8a", "0000"))
    with (
        caplog.at_level(logging.WARNING, "chainrule"),
        contextlib.closing(Component.from_source(SOURCE)) as remote,
    ):
        for _ in range(3):
            found = remote.apply({"x": gpu.put(X)})["y"]
            assert type(found) is np.ndarray
            np.testing.assert_allclose(found, 3 * X**2, rtol=1e-6)
    assert sum("through the host" in record.message for record in caplog.records) == 1


def test_what_does_not_fit_goes_through_the_host(gpu):
    share = 200_000 / gpu.device.total_bytes
    config = {"device_exchange_share": share}
    with contextlib.closing(Component.from_source(SOURCE, config=config)) as remote:
        assert gpu.library.holds(remote.apply({"x": gpu.put(X[:10])})["y"])
        found = remote.apply({"x": gpu.put(X)})["y"]
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, 3 * X**2, rtol=1e-6)


def test_a_server_says_how_much_memory_its_workers_have(gpu):
    with serving() as url, contextlib.closing(Component.from_url(url)) as remote:
        remote.apply({"x": gpu.put(X)})
        server = remote.transport.server
        (worker,) = server.status()["workers"]
        assert worker["device_bytes"] > 0
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'chainrule_worker_device_bytes{component="exchanged",worker="0"}' in metrics


def test_closing_frees_the_memory(gpu):
    of_others = buffers_of(os.getpid())
    remote = Component.from_source(SOURCE)
    remote.apply({"x": gpu.put(X)})
    pool = remote.transport._devices.link().exchange.pool
    remote.close()
    assert pool.held_bytes == 0
    assert buffers_of(os.getpid()) == of_others


@pytest.fixture
def buffers_are_handed_over(monkeypatch):
    if not ON_GPU:
        hand_over_buffers(monkeypatch.setattr)


@pytest.mark.parametrize("size", PROGRAM_SIZES)
def test_programs_of_jax(gpu, remote, buffers_are_handed_over, size):
    def cost(x):
        return (apply_component(remote, {"x": x})["y"] * x).sum()

    remote.apply({"x": gpu.put(X)})
    before = getattr(gpu.library, "uploads", 0)
    program = jax.jit(jax.value_and_grad(cost))
    for number in range(1, 4):
        x = number * jnp.linspace(0.5, 1.0, size, dtype=jnp.float32)
        value, slope = program(x)
        np.testing.assert_allclose(value, (3 * x**3).sum(), rtol=1e-4)
        assert jnp.allclose(slope, 9 * x**2, rtol=1e-5)
    if not ON_GPU:
        assert STREAM in gpu.library.streams
        assert gpu.library.uploads == before


def test_programs_do_not_overtake_their_arrays(gpu, remote, buffers_are_handed_over):
    """Long kernels before and after the call; the memory of one step is soon that of another."""
    large = jnp.eye(4000 if ON_GPU else 200, dtype=jnp.float32)

    @jax.jit
    def step(x):
        late = x * (large @ large @ large @ large)[0, 0]
        y = apply_component(remote, {"x": late})["y"]
        return (y + 0 * (large @ large @ large)[0, 0]) / 3

    x = jnp.linspace(0.5, 1.0, 2000, dtype=jnp.float32)
    wrong = 0
    for number in range(200 if ON_GPU else 20):
        y = step(x + number / 100)
        wrong += not jnp.allclose(y, (x + number / 100) ** 2, rtol=1e-5)
    assert not wrong


@pytest.mark.parametrize(
    "place",
    ["", "x:y", f"{UUID}:!:0:0", f"{UUID}:AAAA:0:8", f"{UUID}:{'A' * 84}AAA=:0:1", f"{UUID}::0:0"],
)
def test_places_that_are_none(gpu, remote, place):
    remote.apply({"x": gpu.put(X)})
    transport = remote.transport
    payload = {"inputs": {"x": Declared("float32", (4,), place)}}
    with pytest.raises(ChainruleError) as caught:
        transport.call("apply", payload)
    assert caught.value.code == "bad_device_handle"
    np.testing.assert_allclose(gpu.get(remote.apply({"x": gpu.put(X)})["y"]), 3 * X**2, rtol=1e-6)


def test_an_array_beyond_its_buffer_is_refused(gpu, remote):
    from chainrule._codec import DeviceArray as Declared

    remote.apply({"x": gpu.put(X)})
    exchange = remote.transport._devices.link().exchange
    buffer = exchange.pool.take(1000)
    place = Place(exchange.device.uuid, buffer.handle, 0, 10**9)
    payload = {"inputs": {"x": Declared("float32", (10**7,), str(place))}}
    with pytest.raises(ChainruleError) as caught:
        remote.transport.call("apply", payload)
    assert caught.value.code == "bad_device_handle"
    exchange.pool.give_back(buffer)


def test_a_component_of_the_host_takes_no_places(gpu):
    served = Path(__file__).parents[1] / "client" / "some_component.py"
    with contextlib.closing(Component.from_source(served)) as remote:
        with pytest.raises(ChainruleError) as caught:
            remote.transport.call("apply", {"inputs": {"x": Declared("float64", (1,), "x")}})
        assert caught.value.code == "frames_malformed"
