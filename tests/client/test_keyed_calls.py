"""Calls with a key, whose server dies or stops: who gets an answer, and that nothing runs twice."""

import itertools
import random
import socket
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from chainrule.client import Component
from chainrule.errors import ComponentError, TransportError
from client.server_farm import Farm

HANG_S = 120  # every limit here only ends what hangs


@pytest.fixture(scope="module")
def farm():
    farm = Farm()
    yield farm
    farm.close()


def over(servers, **options):
    options = {"startup_timeout": HANG_S, "timeout": HANG_S, "idempotent": "key"} | options
    return Component.from_urls([server.url for server in servers], **options)


class Calls:
    """Four calls at one server, the first of which runs until `go`, and the others wait behind it."""

    def __init__(self, component, tmp_path):
        self._gate, self._notes = tmp_path / "gate", tmp_path / "notes"
        inputs = {"note_in": str(self._notes), "mode": f"until {self._gate}"}
        self._calls = [
            component.start_call("apply", {"inputs": {"x": [float(k)], **inputs}}) for k in range(4)
        ]

    def wait_until_one_runs(self, wait_until):
        wait_until(lambda: self.runs)

    @property
    def runs(self):
        return self._notes.read_text().count("\n") if self._notes.exists() else 0

    def go(self):
        self._gate.touch()

    def answers(self):
        """The answers that are right, and the codes of the others."""
        right, codes = 0, Counter()
        for k, call in enumerate(self._calls):
            try:
                right += call.result(HANG_S)["y"] == k**2
            except TransportError as error:
                codes[error.code] += 1
        return right, dict(codes)


@pytest.fixture
def wait_until():
    def wait(condition):
        pause, waited = threading.Event(), 0.0
        while not condition():
            assert waited < HANG_S
            pause.wait(0.02)
            waited += 0.02

    return wait


def jobs_waiting(server):
    with Component.from_url(server.url) as component:
        return component.transport.server.status()["jobs"]["queued"]


def test_the_server_comes_back_with_its_jobs(farm, tmp_path, wait_until):
    """The call that ran has an end, and those that waited behind it are answered."""
    folder = str(tmp_path / "jobs")
    server = farm.start(jobs_folder=folder)
    with over([server]) as component:
        calls = Calls(component, tmp_path)
        wait_until(lambda: calls.runs and jobs_waiting(server) == 3)
        server.kill()
        calls.go()
        server = farm.start(port=server.port, jobs_folder=folder)
        assert calls.answers() == (3, {"server_stopped": 1})
    assert calls.runs == 4
    server.kill()


def test_another_server_without_its_jobs_takes_its_place(farm, tmp_path, wait_until):
    """It would run the calls a second time, so none is sent to it, nor to the server beside it."""
    server = farm.start()
    with over([server], startup_timeout=1.0) as component:
        calls = Calls(component, tmp_path)
        wait_until(lambda: calls.runs and jobs_waiting(server) == 3)
        server.kill()
        calls.go()
        server = farm.start(port=server.port)
        right, codes = calls.answers()
        assert (right, sum(codes.values())) == (0, 4)
        assert set(codes) == {"connection_lost"}
        assert calls.runs == 1
        wait_until(lambda: component.health()["status"] == "ok")
        assert component.apply({"x": [3.0]})["y"] == 9.0, "new calls go to it"
    server.kill()


@pytest.mark.parametrize("keeps_jobs", [True, False])
def test_one_server(farm, tmp_path, wait_until, keeps_jobs):
    """A handle of one URL repeats a call where the server still has its jobs, and nowhere else."""
    options = {"jobs_folder": str(tmp_path / "jobs")} if keeps_jobs else {}
    server = farm.start(**options)
    with Component.from_url(server.url, idempotent="key", retries=8, timeout=HANG_S) as component:
        calls = Calls(component, tmp_path)
        wait_until(lambda: calls.runs and jobs_waiting(server) == 3)
        server.kill()
        calls.go()
        server = farm.start(port=server.port, **options)
        if keeps_jobs:
            assert calls.answers() == (3, {"server_stopped": 1})
            assert calls.runs == 4
        else:
            assert calls.answers() == (0, {"connection_lost": 4})
            assert calls.runs == 1
        assert component.apply({"x": [3.0]})["y"] == 9.0, "a new call has not run anywhere"
        assert component.submit("apply", {"x": [2.0]}).result(HANG_S)["y"] == 4.0
    server.kill()


@pytest.mark.parametrize("keeps_jobs", [True, False])
def test_a_server_that_stops_in_order(farm, tmp_path, wait_until, keeps_jobs):
    """What waited there runs at the next server, whether that finds the jobs of the first one or has none."""
    options = {"jobs_folder": str(tmp_path / "jobs")} if keeps_jobs else {}
    first = farm.start(grace_s=HANG_S, **options)
    with over([first]) as component:
        assert component.name
        calls = Calls(component, tmp_path)
        wait_until(lambda: calls.runs and jobs_waiting(first) == 3)
        first.terminate()
        wait_until(lambda: not is_up(first))  # it takes no calls, and waits for the one that runs
        calls.go()
        wait_until(lambda: not Path(f"/proc/{first.pid}").exists())
        assert calls.runs == 1
        second = farm.start(port=first.port, **options)
        assert calls.answers() == (4, {})
    assert calls.runs == 4
    second.kill()


def is_up(server):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", server.port)) == 0


def test_a_worker_that_dies_is_the_answer(farm, tmp_path):
    """It is in the record of the call: no other server is asked."""
    notes = tmp_path / "notes"
    servers = [farm.start(workers=1, startup_timeout_s=HANG_S) for _ in range(2)]
    with over(servers) as component:
        with pytest.raises((TransportError, ComponentError)) as caught:
            component.apply({"x": [1.0], "mode": "crash", "note_in": str(notes)})
        assert caught.value.code == "worker_crashed"
        assert component.apply({"x": [3.0]})["y"] == 9.0
    assert notes.read_text().count("\n") == 1
    for server in servers:
        server.kill()


def test_kill_at_random(farm, tmp_path):
    """Calls and gradients on eight threads; each kill costs at most the one call that ran there."""
    count, draw = 600, random.Random(31)
    folders = [str(tmp_path / f"jobs-{k}") for k in range(4)]
    servers = [farm.start(jobs_folder=folder) for folder in folders]
    notes, numbers, lock = tmp_path / "notes", itertools.count(), threading.Lock()
    codes, wrong, kills = Counter(), [], []

    with over(servers) as component:

        def one(number):
            x = np.array([float(number), 1.0])
            inputs = {"x": x, "note_in": f"{notes}-{number}"}
            try:
                if number % 2:
                    right = component.apply(inputs)["y"] == number**2 + 1.0
                else:
                    cotangent = {"y": 3.0}
                    found = component.vector_jacobian_product(inputs, ["x"], ["y"], cotangent)
                    right = (found["x"] == 6 * x).all()
            except TransportError as error:
                with lock:
                    codes[error.code] += 1
                return
            if not right:
                wrong.append(number)

        def work():
            while (number := next(numbers)) < count:
                one(number)
                if number % 100 == 50:
                    with lock:
                        place = draw.randrange(4)
                        servers[place].kill()
                        kills.append(place)
                        servers[place] = farm.start(
                            port=servers[place].port, jobs_folder=folders[place]
                        )

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
    assert wrong == []
    assert len(kills) == 6
    assert set(codes) <= {"server_stopped"}
    assert codes.total() <= len(kills)
    runs = [path.read_text().count("\n") for path in tmp_path.glob("notes-*")]
    assert set(runs) <= {0, 1}  # a note may be opened and not yet written when its server is killed
    for server in servers:
        server.kill()
