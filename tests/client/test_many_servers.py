"""One handle over several real servers: which one answers, what happens when they die, fail, or change."""

import asyncio
import itertools
import json
import pickle
import random
import socket
import threading
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from client.server_farm import SOURCE, Farm

from chainrule import apply_component
from chainrule.client import Component
from chainrule.errors import CapabilityError, InputError, NotGrantedError, TransportError

HANG_S = 120  # every limit here only ends what hangs


@pytest.fixture(scope="module")
def farm():
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture(scope="module")
def four(farm):
    return [farm.start() for _ in range(4)]


def over(servers, **options):
    options = {"startup_timeout": HANG_S, "timeout": HANG_S} | options
    return Component.from_urls([server.url for server in servers], **options)


def states(component):
    return [row["state"] for row in component.health()["servers"]]


def wait_for(condition):
    """Until something that happens elsewhere has happened."""
    pause, waited = threading.Event(), 0.0
    while not condition():
        assert waited < HANG_S
        pause.wait(0.02)
        waited += 0.02


def test_four_servers_that_are_killed_and_restarted_lose_no_call(farm):
    """5000 calls and gradients on eight threads; every 500 of them a server is killed, and started again."""
    servers = [farm.start() for _ in range(4)]
    draw = random.Random(0)
    numbers = itertools.count()
    lock = threading.Lock()
    wrong, done = [], Counter()

    with over(servers, idempotent=True) as component:

        def one(number):
            x = np.array([float(number), 1.0])
            if number % 2:
                found = component.apply({"x": x})["y"]
                right = found == number**2 + 1.0
            else:
                cotangent = {"y": float(number % 7)}
                found = component.vector_jacobian_product({"x": x}, ["x"], ["y"], cotangent)["x"]
                right = (found == 2 * x * cotangent["y"]).all()
            with lock:
                done[number] += 1
                if not right:
                    wrong.append((number, found))
            if number % 500 == 250:
                with lock:  # one server at a time; the others go on with their calls
                    position = draw.randrange(4)
                    servers[position].kill()
                    servers[position] = farm.start(port=servers[position].port)

        def work():
            while (number := next(numbers)) < 5000:
                one(number)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert wrong == []
        assert sorted(done) == list(range(5000))
        assert set(done.values()) == {1}
        wait_for(lambda: set(states(component)) == {"idle"})
        assert sum(row["lost"] for row in component.health()["servers"]) >= 1
