"""Nothing that a user or an author holds ever changes by itself.

`author.WAYS` is the table of what authors do with arrays, `TRANSPORTS` the table of how their components are
reached, and `USES` the table of what users do with a component. A new row of either table needs one line.
"""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule import Component, apply_component, from_callable
from chainrule.deploy.local import deploy
from chainrule.runtime import load_component
from memory import author

AUTHOR = Path(author.__file__)
SMALL, LARGE = 3, 20_000
FAILING = ("keep_and_raise", "overwrite_and_raise")
WAYS = [name for name in author.WAYS if name != "keep_and_take_long"]

_SERVE = """
import sys
from chainrule.serve import serve
serve(sys.argv[1], port=0, workers=1, grace_s=1, on_ready=lambda url: print(url, flush=True))
"""


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@contextmanager
def served(**options):
    """A component behind a URL."""
    command = [sys.executable, "-c", _SERVE, str(AUTHOR)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        with Component.from_url(process.stdout.readline().strip(), **options) as component:
            yield component
    finally:
        process.terminate()
        process.wait(300)
        process.stdout.close()


TRANSPORTS = {
    "local": lambda: nullcontext(load_component(AUTHOR)),
    "in process": lambda: Component.from_api(AUTHOR),
    "own process": lambda: Component.from_source(AUTHOR),
    "pool": lambda: deploy(AUTHOR, replicas=1),
    "HTTP": partial(served, share_memory=False),
    "same host": served,
}
IN_PROCESS = ("local", "in process")


@pytest.fixture(scope="module")
def components():
    """Transport → component; each is started when it is first asked for."""
    with ExitStack() as stack:

        class Started(dict):
            def __missing__(self, name):
                self[name] = stack.enter_context(TRANSPORTS[name]())
                return self[name]

        yield Started()


@pytest.fixture(params=TRANSPORTS)
def component(components, request):
    found = components[request.param]
    yield found
    # In every case the author's arrays are unchanged.
    assert changes(found) == 0


def changes(component):
    one = np.zeros(1)
    return component.apply({"way": "count changes", "x": one, "shift": one})["changes"]


def arrays(size, number):
    """The same numbers as users have them: in NumPy, read-only, a part of an array, in JAX."""
    x = np.arange(size) + 10.0 * number
    spaced = np.repeat(x, 2)[::2]
    fixed = x.copy()
    fixed.flags.writeable = False
    return x.copy(), fixed, spaced, jnp.asarray(x)


class Holder:
    """A user who keeps all arrays, with what they were."""

    def __init__(self):
        self.held = []
        self.results = []

    def hold(self, array):
        self.held.append((array, np.array(array)))
        return array

    def receive(self, result, expected):
        np.testing.assert_array_equal(result, expected)
        self.held.append((result, np.array(expected)))
        self.results.append(result)

    def check(self):
        for array, was in self.held:
            np.testing.assert_array_equal(array, was)

    def overwrite_results(self):
        """The arrays that a user received are the user's: no other code sees this."""
        for result in self.results:
            if isinstance(result, np.ndarray):
                result[...] = -7.0
        self.results.clear()


def failing_only_in(way):
    """Expect an exception, of any type, exactly where the author raises one."""
    return pytest.raises(Exception, match="no convergence") if way in FAILING else nullcontext()


def inputs_of(way, x, shift):
    return {"way": way, "x": x, "shift": shift}


def use_apply(component, way, x, shift, v):
    return component.apply(inputs_of(way, x, shift))["y"], 2 * np.asarray(x) + np.asarray(shift)


def use_jvp(component, way, x, shift, v):
    answer = component.jacobian_vector_product(inputs_of(way, x, shift), ["x"], ["y"], {"x": v})
    return answer["y"], 2 * np.asarray(v)


def use_vjp(component, way, x, shift, v):
    answer = component.vector_jacobian_product(inputs_of(way, x, shift), ["x"], ["y"], {"y": v})
    return answer["x"], 2 * np.asarray(v)


def use_vjps(component, way, x, shift, v):
    vectors = np.stack([v, v + 1, v + 2])
    answer = component.vector_jacobian_product(
        inputs_of(way, x, shift), ["x"], ["y"], {"y": vectors}, batched=True
    )
    return answer["x"], 2 * vectors


def use_value_and_vjp(component, way, x, shift, v):
    answer = component.value_and_vjp(inputs_of(way, x, shift), ["x"], ["y"], {"y": v})
    found = np.stack([answer["outputs"]["y"], answer["gradient"]["x"]])
    return found, np.stack([2 * np.asarray(x) + np.asarray(shift), 2 * np.asarray(v)])


def use_jacobian(component, way, x, shift, v):
    part = inputs_of(way, x[:SMALL], shift[:SMALL])
    return component.jacobian(part, ["x"], ["y"])["y"]["x"], 2 * np.eye(SMALL)


USES = {
    use.__name__.removeprefix("use_"): use
    for use in (use_apply, use_jvp, use_vjp, use_vjps, use_value_and_vjp, use_jacobian)
}


def in_jax(component, way, x, shift):
    return apply_component(component, inputs_of(way, x, shift))["y"]


def jax_apply(component, way):
    """The component beside other operations on the same operands."""

    def program(x, shift, v):
        y = in_jax(component, way, x, shift)
        return jnp.stack([y, x * x, shift + v])

    return program, lambda x, shift, v: np.stack([2 * x + shift, x * x, shift + v])


def jax_gradients(component, way):
    def program(x, shift, v):
        function = partial(in_jax, component, way)
        y, pushed = jax.jvp(lambda x: function(x, shift), (x,), (v,))
        _, pull = jax.vjp(lambda x: function(x, shift), x)
        return jnp.stack([y, pushed, pull(v)[0], x + v])

    return program, lambda x, shift, v: np.stack([2 * x + shift, 2 * v, 2 * v, x + v])


def jax_vmap(component, way):
    """`shift` is one operand for all examples."""

    def program(x, shift, v):
        batch = jnp.stack([x, v, x - v])
        return jax.vmap(lambda each: in_jax(component, way, each, shift))(batch) + shift

    return program, lambda x, shift, v: 2 * np.stack([x, v, x - v]) + 2 * shift


JAX_USES = {use.__name__.removeprefix("jax_"): use for use in (jax_apply, jax_gradients, jax_vmap)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", USES)
def test_endpoints(component, use, way):
    user = Holder()
    for number in range(4):
        for size in (SMALL, LARGE):
            x = user.hold(arrays(size, number)[number])
            shift, v = user.hold(np.full(size, 5.0)), user.hold(np.arange(float(size)) + number)
            with failing_only_in(way):
                user.receive(*USES[use](component, way, x, shift, v))
    user.check()
    user.overwrite_results()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_results_can_be_overwritten(component, size):
    for use in USES.values():
        x = np.ones(size)
        result, expected = use(component, "keep", x, x, x)
        result += 1
        np.testing.assert_array_equal(result, expected + 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", JAX_USES)
@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("transport", ["in process", "own process"])
def test_programs_of_jax(components, transport, how, use, way):
    """`jax.pure_callback` is the model: operands and other values of the program stay as they are."""
    component, user = components[transport], Holder()
    program, expected = JAX_USES[use](component, way)
    program = jax.jit(program) if how == "jit" else program
    for number in range(4):
        x = user.hold(arrays(LARGE, number)[number])
        shift, v = user.hold(np.full(LARGE, 5.0)), user.hold(np.arange(float(LARGE)) + number)
        with failing_only_in(way):
            user.receive(np.asarray(program(x, shift, v)), expected(np.asarray(x), shift, v))
    user.check()
    assert changes(component) == 0


@pytest.mark.parametrize("way", ["overwrite", "keep", "return_the_input", "return_the_same_buffer"])
@pytest.mark.parametrize("is_jitted", [False, True])
def test_threads(component, way, is_jitted):
    program = jax.jit(partial(in_jax, component, way))
    problems, start = [], threading.Barrier(4)

    def work(offset):
        user = Holder()
        start.wait()
        with jax.enable_x64(True):
            try:
                for number in range(6):
                    x = user.hold(np.arange(float(LARGE)) + 100 * offset + number)
                    shift = user.hold(np.full(LARGE, float(offset)))
                    if is_jitted:
                        found = np.asarray(program(x, shift))
                    else:
                        found = component.apply(inputs_of(way, x, shift))["y"]
                    user.receive(found, 2 * x + shift)
                user.check()
            except BaseException as error:
                problems.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name not in IN_PROCESS])
def test_calls_that_are_given_up(components, transport):
    component, user = components[transport], Holder()
    x, shift = user.hold(np.arange(float(LARGE))), user.hold(np.ones(LARGE))
    for _ in range(2):
        user.receive(*use_apply(component, "keep", x, shift, None))
        job = component.submit("apply", inputs_of("keep_and_take_long", x, shift))
        while job.status == "queued":
            threading.Event().wait(0.01)
        job.cancel()
        with pytest.raises(Exception, match="cancel"):
            job.result(60)
        user.receive(*use_apply(component, "return_the_same_buffer", x, shift, None))
    user.check()
    assert changes(component) == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(WAYS),
        st.sampled_from(sorted(USES)),
        st.sampled_from([1, SMALL, 2047, 4096, LARGE]),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=12,
)


@pytest.mark.parametrize("transport", ["in process", "own process"])
@settings(max_examples=25)
@given(steps=steps)
def test_any_sequence_of_calls(components, transport, steps):
    component, user = components[transport], Holder()
    for number, (way, use, size, kind) in enumerate(steps):
        x = user.hold(arrays(max(size, SMALL), number)[kind])
        shift, v = user.hold(np.full(len(x), float(number))), user.hold(np.asarray(x) / 2)
        with failing_only_in(way):
            user.receive(*USES[use](component, way, x, shift, v))
    user.check()
    user.overwrite_results()
    assert changes(component) == 0


@pytest.mark.parametrize("how", ["eager", "jit", "vmap"])
@pytest.mark.parametrize("way", WAYS)
def test_callables(way, how):
    """The same for a bare function of NumPy arrays."""
    do = author.WAYS[way]

    def function(x, shift):
        y = 2 * x + shift
        do(shift, y.copy())
        return do(x, y)

    call = from_callable(
        function,
        jvp=lambda primals, tangents: do(primals[0], 2 * do(tangents[0], tangents[0].copy())),
        abstract=lambda x, shift: x,
    )
    program = {"eager": call, "jit": jax.jit(call), "vmap": jax.vmap(call, (0, None))}[how]
    user = Holder()
    for number in range(3):
        x, shift = user.hold(np.arange(float(LARGE)) + number), user.hold(np.ones(LARGE))
        batch = user.hold(np.stack([x, x + 1])) if how == "vmap" else x
        with failing_only_in(way):
            user.receive(np.asarray(program(batch, shift)), 2 * batch + shift)
    user.check()
    author.MAY_WRITE.set()
    while author.WAITING:
        author.WAITING.pop().join()
    author.MAY_WRITE.clear()
    user.check()
    assert all(np.array_equal(array, was) for array, was in author.HELD)
    author.HELD.clear()
