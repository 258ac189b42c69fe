"""Several workers: what waits for what, how long it takes, and carrying it out."""

import math
import random
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.bridge.conftest import serving
from tests.elimination.planning.test_search import chain, check_steps, random_network

import chainrule
from chainrule import from_callable
from chainrule.bridge._target import Timings
from chainrule.elimination import jacobian, plan_jacobian
from chainrule.elimination._planning._network import Network, SiteNodes
from chainrule.elimination._planning._prices import SitePrices
from chainrule.elimination._planning._schedule import find_shortest, makespan, needed_steps
from chainrule.elimination._planning._search import find_steps, sweeps
from chainrule.errors import TransportError
from chainrule.runtime import Array, Differentiable, Float64, load_component

UNIT = SitePrices()


def bottleneck(*sizes):
    return chain(sizes)


def test_halves_are_independent():
    network = bottleneck(6, 6, 1, 6, 6)
    steps = find_steps(network).steps
    position = {step.site: k for k, step in enumerate(steps)}
    needed = needed_steps(network, steps)
    assert needed[position[0]] == {position[1]}
    assert needed[position[3]] == {position[2]}
    assert needed[position[1]] == needed[position[2]] == frozenset()
    assert makespan(network, steps, 1) == 4
    assert makespan(network, steps, 2) == 2
    assert makespan(network, steps, 9) == 2


def test_any_number_of_workers_is_between_the_bounds():
    rng = random.Random(0)
    for _ in range(30):
        network = random_network(rng, 5, lambda _: UNIT)
        known = sweeps(network)
        steps = find_steps(network).steps
        total = sum(step.price for step in steps)
        times = [makespan(network, steps, workers) for workers in (1, 2, 3, 1000)]
        assert times[0] == total
        assert times == sorted(times, reverse=True)
        assert all(total / n <= t for n, t in zip((1, 2, 3, 1000), times, strict=True))
        for workers in (1, 2, 4):
            shortest = find_shortest(
                network, [steps, *known.values()], workers, known["local Jacobians"]
            )
            check_steps(network, shortest)
            assert makespan(network, shortest, workers) <= makespan(network, steps, workers)


def test_many_workers_ask_for_local_jacobians():
    """2-9-9-3: pushing two columns takes six products, one after the other in pairs."""
    network = bottleneck(2, 9, 9, 3)
    steps, known = find_steps(network).steps, sweeps(network)
    assert makespan(network, steps, 100) == 3
    shortest = find_shortest(network, [steps], 100, known["local Jacobians"])
    assert makespan(network, shortest, 100) == 1


class Together:
    """Functions that answer only when two of them are called at the same time; counts how many are."""

    def __init__(self, count):
        self.most = self._now = 0
        self._lock, self._barrier = threading.Lock(), threading.Barrier(count)

    def __call__(self):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._barrier.wait(timeout=60)
        with self._lock:
            self._now -= 1


def test_at_most_so_many_are_under_way():
    together = Together(2)

    def component(n, m, name):
        matrix = np.random.default_rng(n + m).normal(size=(m, n))

        def push(primals, tangents):
            together()
            return matrix @ tangents[0]

        def pull(primals, cotangent):
            together()
            return (matrix.T @ cotangent,)

        shape = jax.ShapeDtypeStruct((m,), float)
        return from_callable(lambda x: matrix @ x, jvp=push, vjp=pull, abstract=shape, name=name)

    a, b = component(6, 2, "a"), component(2, 6, "b")

    def f(x):
        return b(a(x))

    x = jnp.ones(6)
    plan = plan_jacobian(f, workers=2, objective="time")(x)
    assert (plan.products, plan.makespan) == (4, 2)
    hasty = plan_jacobian(f, workers=9, prices={"a": {"vjp": 2.0}}, objective="time")(x)
    assert (plan.gap, hasty.price, hasty.bound, hasty.makespan) == (0, 8, 6, 1)
    assert "price 8; no plan costs less than 6" in str(hasty)
    assert "price 4: the optimum" in str(plan)
    value, found = plan.execute(x)
    assert together.most == 2
    np.testing.assert_allclose(value, f(x))
    np.testing.assert_allclose(found @ x, f(x), rtol=1e-12)


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize("failures", [1, 2, math.inf])
def test_a_message_that_fails_is_sent_once_more(counted, failures, workers):
    a, b = counted.component("a", 4, 2), counted.component("b", 2, 4)
    left = [failures]

    def pull(primals, cotangent):
        if left[0] > 0:
            left[0] -= 1
            raise TransportError("The worker died.", code="worker_crashed")
        return (2 * cotangent,)

    double = from_callable(lambda x: 2 * x, vjp=pull, abstract=lambda x: x, name="double")

    def f(x):
        return b(double(a(x)))

    x = jnp.linspace(0.1, 1.0, 4)
    plan = plan_jacobian(f, workers=workers)(x)
    if failures == 1:
        _, found = plan.execute(x)
        np.testing.assert_allclose(found, jax.jacfwd(lambda x: b(2 * a(x)))(x), rtol=1e-12)
        return
    with pytest.raises(TransportError, match=r"VJP.* of double .*failed twice: The worker died"):
        plan.execute(x)


def test_results_are_the_same_with_workers(counted):
    a, b = counted.component("a", 3, 4), counted.component("b", 3, 2)

    def f(x):
        return {"a": a(x) * b(jnp.cos(x))[0], "b": b(jnp.cos(x))}

    x = jnp.linspace(0.1, 1.0, 3)
    plan = plan_jacobian(f, workers=3)(x)
    counted.asked.clear()
    _, found = plan.execute(x)
    counted.check(plan)
    jax.tree.map(np.testing.assert_allclose, found, jacobian(f)(x))
    jax.tree.map(np.testing.assert_allclose, jax.jit(plan.execute)(x)[1], found)


def test_prices_decide(counted):
    a, b = counted.component("a", 5, 5), counted.component("b", 5, 5)

    def f(x):
        return b(a(x))

    x = jnp.ones(5)
    for prices, ways in [
        ({"a": {"jvp": 1, "vjp": 9}, "b": {"jvp": 1, "vjp": 9}}, ["columns", "columns"]),
        ({"a": {"jvp": 9, "vjp": 1}, "b": {"jvp": 9, "vjp": 1}}, ["rows", "rows"]),
        ({"a": {"apply": 3.0, "jvp": 1.0}, "b": {"vjp": 0.5}}, ["columns", "rows"]),
    ]:
        plan = plan_jacobian(f, prices=prices)(x)
        chosen = {request.site: request.way for request in plan.requests}
        assert [chosen["a"], chosen["b"]] == ways
        assert {request.prices for request in plan.requests} == {"given"}
    assert plan.price == 5 * 1.0 + 5 * 0.5


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"c": {"jvp": 1}}, "names 'c', which the pipeline does not call; it calls a"),
        ({"a": {"jvp": -1}}, "'a': the price 'jvp' is a positive number; found -1"),
        ({"a": {"jvp": math.nan}}, "found nan"),
        ({"a": {"gradient": 1}}, "no price 'gradient'; there are apply, jvp, vjp"),
        ({"a": 3}, "expected a dictionary"),
        ([1], "names of components to their prices"),
        ("free", "'measured', or a dictionary"),
    ],
)
def test_prices_that_cannot_be_used(counted, prices, message):
    with pytest.raises(chainrule.InputError, match=message):
        plan_jacobian(counted.component("a", 2, 2), prices=prices)(jnp.ones(2))


@pytest.mark.parametrize("priced", ["jvp", "jacobian"])
def test_prices_of_what_a_component_does_not_have(counted, priced):
    a = counted.component("a", 2, 2, jvp=False)
    assert plan_jacobian(a, prices={"a": {"vjp": 0.1}})(jnp.ones(2)).price == 0.2
    with pytest.raises(chainrule.InputError, match=f"has one for '{priced}', but a.* has no"):
        plan_jacobian(a, prices={"a": {priced: 0.1}})(jnp.ones(2))


def test_prices_of_a_component_in_a_loop(counted):
    a = counted.component("a", 2, 2)

    def f(x):
        return jax.lax.scan(lambda carry, _: (a(carry), None), x, length=70)[0]

    plan = plan_jacobian(f, prices={"a": {"jvp": 9.0, "vjp": 0.5}})(jnp.ones(2))
    (request,) = plan.requests
    assert (request.way, request.price, request.prices) == ("rows", 2 * 70 * 0.5, "given")
    assert request.products == 2 * 70


def test_measured_prices(counted):
    a = counted.component("a", 4, 4)
    by_kind = plan_jacobian(a, prices="measured")(jnp.ones(4))
    assert (by_kind.price, by_kind.requests[0].prices) == (4, "kind of endpoint")
    jax.jit(jax.vmap(lambda v: jax.jvp(a, (jnp.ones(4),), (v,))))(jnp.eye(4))
    plan = plan_jacobian(a, prices="measured")(jnp.ones(4))
    assert plan.requests[0].prices == "measurement"
    assert 0 < plan.price < 4
    assert plan_jacobian(a)(jnp.ones(4)) == plan_jacobian(a, prices={})(jnp.ones(4))


def test_messages_and_vectors_are_measured_apart():
    """Requests of k vectors take 3 + 2 k seconds, and an evaluation takes 4: 3 of it are the message."""
    timings = Timings()
    timings.note("apply", 4.0)
    assert timings.means() == {"apply": 4.0}
    for vectors in (1, 5, 1, 10):
        timings.note("jvp", 3.0 + 2.0 * vectors, vectors)
    means = timings.means()
    assert means == pytest.approx({"apply": 1.0, "jvp": 2.0, "message": 3.0})


def test_a_server_measures(tmp_path):
    """A process that has called nothing takes what `/metrics` says. All other requests are made of VJPs."""
    path = tmp_path / "slow.py"
    waiting = DYING.replace("import os", "import time").replace("os._exit(3)", "time.sleep(0.02)")
    path.write_text(waiting + '    return {"x": 2 * cotangent_vector["y"]}\n')
    inputs, vector = {"x": np.ones(3)}, {"y": np.ones(3)}
    with serving(path) as url, chainrule.Component.from_url(url) as other:
        assert other.mean_seconds() == {}
        for _ in range(2):
            other.vector_jacobian_product(inputs, ["x"], ["y"], vector)
        other.apply(inputs)
        seconds = other.mean_seconds()
        assert seconds.keys() == {"vector_jacobian_product", "apply"}
        assert seconds["vector_jacobian_product"] >= 0.02
        with chainrule.Component.from_url(url) as slow:
            plan = plan_jacobian(
                lambda x: chainrule.apply_component(slow, {"x": x})["y"], prices="measured"
            )(jnp.ones(3))
            (request,) = plan.requests
            assert (request.way, request.prices) == ("rows", "measurement")
            assert request.price == pytest.approx(3 * seconds["vector_jacobian_product"])


def test_prices_of_the_author(tmp_path):
    """In a decorator and in a module; over HTTP they are in the document."""

    @chainrule.component(derivatives="finite", prices={"apply": 3.0, "vjp": 0.5})
    def double(x: Differentiable[Array[(2,), Float64]]) -> Differentiable[Array[(2,), Float64]]:
        return 2 * x

    assert double.openapi_schema["x-prices"] == double.prices == {"apply": 3.0, "vjp": 0.5}
    plan = plan_jacobian(lambda x: chainrule.apply_component(double, {"x": x})["result"])(
        jnp.ones(2)
    )
    (request,) = plan.requests
    assert (request.way, request.price, request.prices) == ("rows", 1.0, "author")
    source = Path(__file__).parents[2] / "bridge" / "components" / "numpy_component.py"
    for prices, expected in (('{"jvp": 2.0}', {"jvp": 2.0}), ('{"gold": 1}', {}), ("[1, 2]", {})):
        path = tmp_path / f"priced_{len(prices)}.py"
        path.write_text(f"{source.read_text()}\nprices = {prices}\n")
        assert load_component(path).prices == expected
    path.write_text(f"{source.read_text()}\nprices = {{'jvp': 'much'}}\n")
    with pytest.raises(chainrule.ChainruleError, match="'jvp' is a positive number; found 'much'"):
        load_component(path)


def test_options_that_cannot_be_used():
    with pytest.raises(chainrule.InputError, match="at least 1; found 0"):
        plan_jacobian(jnp.sin, workers=0)
    with pytest.raises(chainrule.InputError, match="'products' or 'time'; found 'money'"):
        plan_jacobian(jnp.sin, objective="money")
    with pytest.raises(chainrule.InputError, match="number of bytes, at least 0; found -1"):
        plan_jacobian(jnp.sin, memory_bytes=-1)


def test_a_limit_on_memory(counted):
    """Two rows through both components, 4-3-2; where `a` may keep nothing, it gets its four columns."""
    keeps = {"residual_bytes": 1000}
    a, b = counted.component("a", 4, 3, prices=keeps), counted.component("b", 3, 2, prices=keeps)

    def f(x):
        return b(a(x))

    x = jnp.linspace(0.1, 1.0, 4)
    free = plan_jacobian(f)(x)
    assert (free.products, free.residual_bytes) == (4, 0)  # a callable keeps nothing between calls

    def looped(x):
        return b(jax.lax.fori_loop(0, 70, lambda _, y: jnp.tanh(y) * a(y)[0], x)[:3])

    expected = jax.jacfwd(looped)(x)
    plan = plan_jacobian(looped)(x)
    assert [request.way for request in plan.requests] == ["rows", "rows"]
    limited = plan_jacobian(looped, memory_bytes=100)(x)
    ways = {request.site: request.way for request in limited.requests}
    assert ways == {"scan of a": "columns", "b": "rows"}
    assert limited.residual_bytes == 0
    assert "0 of at most 100 bytes" in str(limited)
    np.testing.assert_allclose(limited.execute(x)[1], expected, rtol=1e-9)
    # JAX keeps, of 70 steps, at least the carry: four doubles.
    enough = plan_jacobian(looped, memory_bytes=1e6)(x)
    assert 70 * 4 * 8 <= enough.residual_bytes < 1e6
    assert enough.requests == plan_jacobian(looped, memory_bytes=1e6, objective="time")(x).requests


def test_messages_have_a_price():
    """One message for a batch is cheaper than three messages, although its products are not."""
    single = SitePrices(jvp=1.0, vjp=1.0, message=10.0)
    batched = SitePrices(jvp=1.0, vjp=1.0, message=10.0, batches=frozenset({"jvp"}))
    for prices, way in ((single, "rows"), (batched, "columns")):
        network = Network((4, 3), (0, 0), (SiteNodes("a", (0,), (1,), prices),), (0,), (1,))
        (step,) = find_steps(network).steps
        assert step.way == way


DYING = """
import os
import numpy as np
from pydantic import BaseModel
from chainrule.runtime import Array, Differentiable, Float64


class InputSchema(BaseModel):
    x: Differentiable[Array[(3,), Float64]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[(3,), Float64]]


def apply(inputs):
    return {"y": 2 * inputs.x}


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    os._exit(3)
"""


def test_a_process_that_dies_is_named(counted, tmp_path):
    path = tmp_path / "dying.py"
    path.write_text(DYING)
    a = counted.component("a", 4, 3)
    with chainrule.Component.from_source(path) as dying:
        plan = plan_jacobian(
            lambda x: chainrule.apply_component(dying, {"x": a(x)})["y"], workers=2
        )(jnp.ones(4))
        with pytest.raises(TransportError, match=r"VJP \d of 3 of dying .*failed twice"):
            plan.execute(jnp.ones(4))


def test_a_result_of_another_shape_is_named():
    a = from_callable(
        lambda x: 2 * x, vjp=lambda p, u: (u[:2],), abstract=lambda x: x, name="cropped"
    )
    for workers in (None, 2):
        plan = plan_jacobian(a, workers=workers)(jnp.ones(3))
        with pytest.raises(chainrule.ComponentError, match=r"`vjp` of cropped returned f64\[2\]"):
            plan.execute(jnp.ones(3))


FAILING = DYING.replace("os._exit(3)", "{}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise ValueError('no convergence')", "no convergence"),
        ("return {'x': np.ones(2)}", r"shape"),
        ("return {}", r"missing \['x'\]"),
    ],
)
def test_a_process_that_fails_is_named(tmp_path, line, message):
    """Served components do not say their name; the plan knows whom it asked for what."""
    path = tmp_path / "diverging.py"
    path.write_text(FAILING.replace("{}", line, 1))
    with chainrule.Component.from_source(path) as diverging:

        def f(x):
            return chainrule.apply_component(diverging, {"x": x})["y"]

        for workers, product in ((None, "VJPs"), (2, r"VJP \d of 3")):
            plan = plan_jacobian(f, workers=workers)(jnp.ones(3))
            with pytest.raises(chainrule.ComponentError, match=message) as found:
                plan.execute(jnp.ones(3))
            last = found.value.__notes__[-1]
            assert re.search(f"{product} of diverging at .*test_schedule", last)
