"""Derivatives that leave their inputs out, because the server has kept those of the forward pass."""

import itertools
import json
import random
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import apply_component
from chainrule._codec import FRAMES_MEDIA_TYPE, decode_body, encode_body
from chainrule.client import Component
from client.server_farm import Farm

SOURCE = Path(__file__).with_name("forward_component.py")
HANG_S = 120  # every limit here only ends what hangs
LONG = 20_000  # numbers, of 160 kB
SMALL = 10_000  # bytes: a request without its inputs has fewer


@pytest.fixture(scope="module")
def farm():
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture(scope="module")
def server(farm):
    return farm.start(SOURCE)


@pytest.fixture
def handle(server):
    with Component.from_url(server.url, timeout=HANG_S) as handle:
        begin(handle)
        yield handle


def begin(handle):
    """Let a handle learn that its server is elsewhere, and that it is asked for derivatives."""
    handle.apply({"x": np.ones(LONG)})
    differentiate(handle, np.ones(LONG))


def differentiate(handle, x, scale=2.0):
    """A gradient, checked against its closed form."""
    found = handle.vector_jacobian_product(
        {"x": x, "scale": scale}, ["x", "scale"], ["y"], {"y": 0.5}
    )
    np.testing.assert_allclose(found["x"], 1.5 * scale * x**2)
    np.testing.assert_allclose(found["scale"], 0.5 * (x**3).sum())


def received(server, endpoint="vector_jacobian_product"):
    """Bytes of bodies that a server has received so far."""
    text = urllib.request.urlopen(f"{server.url}/metrics", timeout=HANG_S).read().decode()
    pattern = rf'^chainrule_received_bytes_total{{[^}}]*endpoint="{endpoint}"}} (\S+)$'
    found = re.search(pattern, text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def numbers(seed):
    return np.random.default_rng(seed).normal(size=LONG)


def post(server, endpoint, payload, **headers):
    """Status, headers and content of an answer."""
    request = urllib.request.Request(
        f"{server.url}/{endpoint}",
        b"".join(encode_body(payload, format=FRAMES_MEDIA_TYPE)),
        {"Content-Type": FRAMES_MEDIA_TYPE, "Accept": FRAMES_MEDIA_TYPE, **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return 200, answer.headers, decode_body(answer.read(), media_type=FRAMES_MEDIA_TYPE)
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read())


GRADIENT = {"vjp_inputs": ["x"], "vjp_outputs": ["y"], "cotangent_vector": {"y": 1.0}}


# --- what a caller sees ------------------------------------------------------------------------------


def test_a_gradient_after_its_forward_pass_sends_no_inputs(server, handle):
    x = numbers(0)
    handle.apply({"x": x, "scale": 2.0})
    before = received(server)
    differentiate(handle, x)
    differentiate(handle, x)  # the author's code has spoilt what it got
    assert received(server) - before < SMALL


def test_any_other_inputs_are_sent(server, handle):
    x = numbers(1)
    handle.apply({"x": x, "scale": 2.0})
    before = received(server)
    for position in (0, LONG // 3, LONG - 1):
        other = x.copy()
        other[position] += 1e-9
        differentiate(handle, other)
    differentiate(handle, x, scale=2.5)
    assert received(server) - before > 4 * x.nbytes


def test_an_array_that_its_owner_changes_is_sent(handle):
    x = numbers(2)
    handle.apply({"x": x, "scale": 2.0})
    x[5] = 17.0
    differentiate(handle, x)


def test_an_array_that_changes_while_it_is_sent_is_sent_again(handle, monkeypatch):
    """As by another thread, between the request and its answer."""
    x, exchange = numbers(2), handle.transport._exchange

    def then_change(request, ticket):
        answer = exchange(request, ticket)
        x[5] = 17.0
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(handle.transport, "_exchange", then_change)
        handle.apply({"x": x, "scale": 2.0})
    differentiate(handle, x)


def test_a_handle_that_only_evaluates_asks_for_nothing(server):
    with Component.from_url(server.url) as handle:
        handle.apply({"x": numbers(3), "scale": 2.0})
        before = received(server)
        differentiate(handle, numbers(3))
        assert received(server) - before > 8 * LONG


def test_two_handles_have_passes_of_their_own(server, handle):
    with Component.from_url(server.url) as other:
        begin(other)
        x = numbers(4)
        handle.apply({"x": x, "scale": 2.0})
        before = received(server)
        differentiate(other, x)
        assert received(server) - before > x.nbytes
        differentiate(handle, x)
        assert received(server) - before < x.nbytes + 2 * SMALL


def test_products_with_tangents_send_no_inputs_either(server, handle):
    x, tangent = numbers(5), numbers(6)
    handle.jacobian_vector_product({"x": x}, ["x"], ["y"], {"x": tangent})
    handle.apply({"x": x, "scale": 2.0})
    before = received(server, "jacobian_vector_product")
    found = handle.jacobian_vector_product({"x": x, "scale": 2.0}, ["x"], ["y"], {"x": tangent})
    np.testing.assert_allclose(found["y"], 6 * (x**2 @ tangent))
    assert received(server, "jacobian_vector_product") - before < tangent.nbytes + SMALL


def test_compiled_gradients_send_no_inputs(server, handle):
    @jax.jit
    def cost(x):
        return apply_component(handle, {"x": jnp.sin(x), "scale": 2.0})["y"]

    with jax.enable_x64(True):
        for seed in range(3):
            x = jnp.asarray(numbers(seed))
            gradient = jax.grad(cost)(x)
            np.testing.assert_allclose(gradient, 6 * jnp.sin(x) ** 2 * jnp.cos(x), rtol=1e-12)
        before = received(server)
        jax.grad(cost)(jnp.asarray(numbers(8)))
    assert received(server) - before < SMALL


def test_a_server_forgets_the_oldest_passes_and_is_sent_the_inputs_again(server, handle):
    points = [numbers(seed) for seed in range(80)]
    for x in points:
        handle.apply({"x": x, "scale": 2.0})
    before = received(server)
    differentiate(handle, points[0])
    assert received(server) - before > points[0].nbytes, "64 are kept"
    before = received(server)
    differentiate(handle, points[-1])
    assert received(server) - before < SMALL


def test_a_restarted_server_is_sent_the_inputs_again(farm):
    server = farm.start(SOURCE)
    with Component.from_url(server.url, retries=50, idempotent=True, timeout=HANG_S) as handle:
        x = numbers(9)
        differentiate(handle, x)
        handle.apply({"x": x, "scale": 2.0})
        server.kill()
        again = farm.start(SOURCE, port=server.port)
        differentiate(handle, x)
        assert received(again) > x.nbytes


@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 1}])
def test_threads_and_worker_processes(farm, options):
    server = farm.start(SOURCE, **options)
    wrong = []

    with Component.from_url(server.url, share_memory=False, timeout=HANG_S) as handle:
        begin(handle)

        def work(seed):
            try:
                for step in range(10):
                    x = numbers(100 * seed + step)
                    handle.apply({"x": x, "scale": 2.0})
                    differentiate(handle, x)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert wrong == []
        x = numbers(0)  # with nothing else to do, the worker that has kept it gets the gradient
        handle.apply({"x": x, "scale": 2.0})
        before = received(server)
        differentiate(handle, x)
        assert received(server) - before < SMALL


def test_gradients_of_four_servers_that_are_killed_are_right(farm):
    """400 gradients on eight threads; a server is killed and started again in every 50."""
    servers = [farm.start(SOURCE) for _ in range(4)]
    draw, steps, lock = random.Random(0), itertools.count(), threading.Lock()
    wrong, killed = [], []
    with Component.from_urls(
        [server.url for server in servers],
        idempotent=True, timeout=HANG_S, startup_timeout=HANG_S,
    ) as handle:  # fmt: skip

        def one(step):
            x = numbers(step)
            handle.apply({"x": x, "scale": 2.0})
            with lock:
                if step % 50 == 10:
                    killed.append(draw.randrange(4))
                    servers[killed[-1]].kill()
                if step % 50 == 40:
                    position = killed.pop()
                    servers[position] = farm.start(SOURCE, port=servers[position].port)
            differentiate(handle, x)

        def work():
            try:
                while (step := next(steps)) < 400:
                    one(step)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert wrong == []
        # Quiet again: a gradient goes to the server of its forward pass.
        for seed in range(8):
            differentiate(handle, numbers(seed))
        before = sum(map(received, servers))
        x = numbers(10_000)
        home = handle.apply({"x": x, "scale": 2.0})["pid"]
        differentiate(handle, x)
        assert home in {server.pid for server in servers}
        assert sum(map(received, servers)) - before < SMALL


# --- the protocol ------------------------------------------------------------------------------------


def test_a_token_is_given_to_those_who_ask_for_it(server):
    payload = {"inputs": {"x": numbers(0), "scale": 2.0}}
    _, headers, _ = post(server, "apply", payload)
    assert "Chainrule-Forward-Pass" not in headers
    _, headers, _ = post(server, "apply", payload, **{"Chainrule-Forward-Pass": "keep"})
    token = headers["Chainrule-Forward-Pass"]
    assert len(token) == 32
    status, _, found = post(
        server, "vector_jacobian_product", GRADIENT, **{"Chainrule-Forward-Pass": token}
    )
    assert status == 200
    np.testing.assert_allclose(found["x"], 6 * numbers(0) ** 2)
    # Inputs that are there count, and not those of the token.
    status, _, found = post(
        server,
        "vector_jacobian_product",
        {**GRADIENT, "inputs": {"x": np.ones(3)}},
        **{"Chainrule-Forward-Pass": token},
    )
    np.testing.assert_allclose(found["x"], 3 * np.ones(3))


@pytest.mark.parametrize("token", ["0" * 32, "keep", "", "é" * 32, "../../etc/passwd"])
def test_a_forged_token_is_refused(server, token):
    status, _, problem = post(
        server, "vector_jacobian_product", GRADIENT,
        **{"Chainrule-Forward-Pass": token.encode().decode("latin-1")},
    )  # fmt: skip
    assert (status, problem["code"]) == (412, "forward_pass_gone")


def test_a_token_of_another_server_is_refused(farm, server):
    other = farm.start(SOURCE)
    payload = {"inputs": {"x": numbers(0)}}
    _, headers, _ = post(server, "apply", payload, **{"Chainrule-Forward-Pass": "keep"})
    named = {"Chainrule-Forward-Pass": headers["Chainrule-Forward-Pass"]}
    status, _, problem = post(other, "vector_jacobian_product", GRADIENT, **named)
    assert (status, problem["code"]) == (412, "forward_pass_gone")


def test_a_long_token_is_refused(server):
    status, _, problem = post(
        server, "vector_jacobian_product", GRADIENT, **{"Chainrule-Forward-Pass": "0" * 2000}
    )
    assert (status, problem["code"]) == (422, "bad_header")


def test_a_job_brings_its_inputs(server):
    payload = {"inputs": {"x": numbers(0)}}
    _, headers, _ = post(server, "apply", payload, **{"Chainrule-Forward-Pass": "keep"})
    status, _, problem = post(
        server, "vector_jacobian_product", GRADIENT,
        **{
            "Chainrule-Forward-Pass": headers["Chainrule-Forward-Pass"],
            "Idempotency-Key": "a-key",
        },
    )  # fmt: skip
    assert (status, problem["code"]) == (422, "missing_field")
