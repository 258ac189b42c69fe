"""An array that was received belongs to its receiver: no other call, client or fault changes it later.

Bodies over 32 kB travel in shared memory on one host. The tests keep what they receive, let other calls of
the same size follow by every way that once reused the memory, and look again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading

import numpy as np
import psutil
import pytest

from chainrule.client import Component
from chainrule.errors import ComponentError, StorageError, TransportError

SIZE = 50_000  # 400 kB: beyond what travels in the request itself


@pytest.fixture(scope="module", params=[0, 1, 2], ids="workers={}".format)
def server(request, start_server):
    served = start_server(workers=request.param)
    yield served
    served.stop()


def inputs(value, action="double", size=SIZE, seconds=0.0):
    return {"x": np.full(size, float(value)), "action": action, "seconds": seconds}


def ask(component, value, **options):
    return component.apply(inputs(value, **options))["y"]


def ask_others(server, count=6):
    """Calls of the same size by another client."""
    with Component.from_url(server.url, timeout=60) as other:
        for number in range(count):
            np.testing.assert_array_equal(ask(other, -number), np.full(SIZE, -2.0 * number))


def check(received):
    """Every array is still twice the value that was sent for it."""
    for value, array in received.items():
        np.testing.assert_array_equal(array, np.full(array.size, 2.0 * value))


def test_after_its_handle_is_closed(server):
    with Component.from_url(server.url, timeout=60) as component:
        y = ask(component, 42)
    ask_others(server)
    check({42: y})


def test_while_the_handle_and_another_one_are_used(server):
    with Component.from_url(server.url, timeout=60) as component:
        received = {value: ask(component, value) for value in range(1, 6)}
        ask_others(server)
        received |= {value: ask(component, value) for value in range(6, 11)}
        check(received)


@pytest.mark.parametrize("attempt", range(3))
def test_eight_threads_on_a_fresh_handle(server, attempt):
    received = {}
    start = threading.Barrier(8)

    def call_some(component, first):
        start.wait()
        for value in range(first, first + 5):
            received[value] = ask(component, value)

    with Component.from_url(server.url, timeout=60) as component:
        threads = [threading.Thread(target=call_some, args=(component, 10 * i)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(received) == 40
        check(received)
    ask_others(server)
    check(received)


def test_the_first_map_of_a_fresh_handle(server):
    values = range(1, 41)
    with Component.from_url(server.url, timeout=60) as component:
        answers = list(component.map([inputs(value) for value in values]))
    ask_others(server)
    check({value: answer["y"] for value, answer in zip(values, answers, strict=True)})


def test_after_a_call_timed_out(server, wait_until):
    with Component.from_url(server.url, timeout=1.0) as component:
        received = {value: ask_again(component, value, wait_until) for value in (1, 2)}
        with pytest.raises(TransportError):
            ask(component, 3, action="sleep", seconds=2.5)
    with Component.from_url(server.url, timeout=60) as component:
        received |= {value: ask(component, value) for value in (4, 5)}
        ask_others(server)
        check(received)


def test_after_the_worker_crashed(server):
    if server.process.pid in {worker["pid"] for worker in server.get("/status").tree["workers"]}:
        pytest.skip("a crash in this mode ends the server")
    with Component.from_url(server.url, timeout=60) as component:
        received = {value: ask(component, value) for value in (1, 2)}
        with pytest.raises(TransportError):
            ask(component, 3, action="exit")
        received |= {value: ask(component, value) for value in (4, 5)}
        ask_others(server)
        check(received)


@contextlib.contextmanager
def few_descriptors(pid, spare):
    """Let a process open only so many files more than it has open now."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + spare, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def processes_of(server):
    return [server.process.pid, *(p.pid for p in psutil.Process(server.process.pid).children())]


def ask_again(component, value, wait_until):
    """The answer, once there is one.

    An event loop without descriptors accepts and closes connections until none waits. A client that connects
    again at once may be the next, time after time, where the server gets little of the processor.
    """
    answers = []

    def is_answered():
        with contextlib.suppress(TransportError):
            answers.append(ask(component, value))
        return answers != []

    wait_until(is_answered)
    return answers[0]


@pytest.mark.parametrize("spare", [0, 1, 2, 4])
def test_with_few_descriptors_on_any_side(server, spare, wait_until):
    """A call may fail; what came back stays, and calls work again once there are descriptors."""
    received = {}
    with Component.from_url(server.url, timeout=120, retries=0) as component:
        received[1] = ask(component, 1)
        for number, pid in enumerate([os.getpid(), *processes_of(server)]):
            with few_descriptors(pid, spare):
                for value in range(10 * number + 10, 10 * number + 15):
                    with contextlib.suppress(TransportError, StorageError):
                        received[value] = ask(component, value)
            last = 10 * number + 15
            received[last] = ask_again(component, last, wait_until)
            check(received)
        ask_others(server)
        check(received)


def test_what_an_author_keeps(server):
    with Component.from_url(server.url, timeout=60) as component:
        for _ in range(6):
            ask(component, 5, action="keep")
    ask_others(server, 12)
    kept = []
    with Component.from_url(server.url, timeout=60) as component:
        for _ in range(10):
            with contextlib.suppress(ComponentError):  # a worker that has kept nothing
                kept.append(ask(component, 1, action="kept"))
    assert kept
    for array in kept:
        np.testing.assert_array_equal(array, np.full(SIZE, 5.0))
