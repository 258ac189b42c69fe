"""Whole simulations of FMUs, against closed forms, FMPy and pure JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import ComponentError, InputError
from chainrule._progress import listening
from chainrule.errors import CapabilityError, DefinitionError
from chainrule.runtime import from_fmu
from chainrule.runtime.testing import check_gradients

TABLE = {"time": [0.0, 0.5, 0.5, 1.0], "u": [1.0, 2.0, -1.0, 0.0]}


def exact(t, x, k, g, u):
    """Of x' = −k x² + g u with a constant u."""
    a = np.sqrt(g * u / k)
    return a * np.tanh(k * a * t + np.arctanh(x / a))


@pytest.fixture(scope="module")
def exchange(fmus):
    return from_fmu(fmus("drain3"))


@pytest.fixture(scope="module")
def fixed_steps(fmus):
    return from_fmu(fmus("drain3"), method="rk4", step_size=0.05)


def test_closed_form_at_irregular_times(exchange, fmus):
    times = np.array([0.0, 0.013, 0.7, 0.71, 2.5])
    found = exchange.apply({"times": times, "parameters": {"g": 3.0}})
    expected = exact(times[:, None], np.array([4.0, 2.0, 1.0]), np.array([0.1, 0.2, 0.3]), 3.0, 1.0)
    np.testing.assert_allclose(found["states"]["x"], expected, rtol=1e-7)
    np.testing.assert_allclose(found["outputs"]["y"], expected.sum(axis=1), rtol=1e-7)
    tank = from_fmu(fmus("drain2"), tolerance=1e-9)
    found = tank.apply({"times": times})
    np.testing.assert_allclose(
        found["states"]["tank_level_1"], exact(times, 2.0, 0.1, 3.0, 1.0), rtol=1e-8
    )
    assert found["outputs"]["echo"] == ["plain"] * 5


def test_inputs_that_change_with_time(exchange):
    """FMPy refreshes them at output times only: 41.3 at a distance of 0.25, where 47.93 is right."""

    def reference(t, x):
        return -jnp.array([0.1, 0.2, 0.3]) * x**2 + 2 * (1 + 2 * t)

    found = exchange.apply({"times": [0.0, 1.0], "inputs": {"time": [0.0, 1.0], "u": [1.0, 3.0]}})
    np.testing.assert_allclose(found["states"]["x"][1], _integrated(reference, 0.0, 1.0), rtol=1e-6)


def test_a_jump(exchange):
    def follow(line):
        return lambda t, x: -jnp.array([0.1, 0.2, 0.3]) * x**2 + 2 * line(t)

    found = exchange.apply({"times": [0.0, 0.25, 0.5, 1.0, 1.5], "inputs": TABLE})
    middle = _integrated(follow(lambda t: 1 + 2 * t), 0.0, 0.5)
    end = _integrated(follow(lambda t: -1 + 2 * (t - 0.5)), 0.5, 1.0, middle)
    np.testing.assert_allclose(found["states"]["x"][2], middle, rtol=1e-6)
    np.testing.assert_allclose(found["states"]["x"][3], end, rtol=1e-6)
    # Outputs at a jump are those after it, and the last row holds.
    assert found["outputs"]["y"][2] == pytest.approx(-found["states"]["x"][2].sum())
    assert found["outputs"]["y"][4] == 0.0


def _integrated(f, start, stop, x=(4.0, 2.0, 1.0), steps=2000):
    """RK4 with many steps."""
    with jax.enable_x64(True):
        h = (stop - start) / steps

        def one(x, t):
            a = f(t, x)
            b = f(t + h / 2, x + h / 2 * a)
            c = f(t + h / 2, x + h / 2 * b)
            d = f(t + h, x + h * c)
            return x + h / 6 * (a + 2 * b + 2 * c + d), None

        return np.asarray(jax.lax.scan(one, jnp.array(x), start + h * jnp.arange(steps))[0])


def test_co_simulation_gives_the_values_of_fmpy(fmus):
    fmpy = pytest.importorskip("fmpy")
    path = str(fmus("drain3"))
    expected = fmpy.simulate_fmu(
        path, fmi_type="CoSimulation", stop_time=1.0, output_interval=0.25,
        start_values={"g": 3.0}, validate=False,
    )  # fmt: skip
    simulation = from_fmu(path, interface="co_simulation", step_size=0.25)
    found = simulation.apply({"times": [0, 0.25, 0.5, 0.75, 1.0], "parameters": {"g": 3.0}})
    np.testing.assert_allclose(found["outputs"]["x"], expected["x"], rtol=1e-12)
    again = simulation.apply({"times": [0, 0.25, 0.5, 0.75, 1.0], "parameters": {"g": 3.0}})
    np.testing.assert_array_equal(again["outputs"]["y"], found["outputs"]["y"])


def test_co_simulation_with_one_length_of_steps(fmus):
    simulation = from_fmu(fmus("drain2"), interface="co_simulation")
    found = simulation.apply({"times": [0.0, 0.3, 1.0]})
    expected = exact(np.array([0.0, 0.3, 1.0]), 2.0, 0.1, 3.0, 1.0)
    np.testing.assert_allclose(found["outputs"]["y"], expected, rtol=1e-3)
    with pytest.raises(InputError, match=r"makes steps of 0\.1 only"):
        simulation.apply({"times": [0.0, 0.25]})


def test_events(fmus):
    """A ball meets the ground at √(2/9.81), and gets a kick at a time."""
    ball = from_fmu(fmus("ball2"), tolerance=1e-9)
    times = np.array([0.0, 0.3, 0.6, 0.8])
    g, fall = 9.81, np.sqrt(2 / 9.81)
    found = ball.apply({"times": times})["outputs"]["h"]
    after = times - fall
    up = 0.7 * g * fall
    expected = np.where(times < fall, 1 - g / 2 * times**2, up * after - g / 2 * after**2)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    kicked = ball.apply({"times": times, "parameters": {"kick": 0.2}})["outputs"]["h"]
    assert kicked[1] == pytest.approx(1 - g / 2 * 0.09 + 0.1, abs=1e-8)
    assert ball.capabilities["vector_jacobian_product"].status == "absent"
    finite = from_fmu(fmus("ball2"), derivatives="finite", tolerance=1e-9)
    slope = finite.jacobian({"times": [0.0, 0.6]}, ["parameters.e"], ["outputs.h"])
    rise = 0.6 - fall
    assert slope["outputs.h"]["parameters.e"][1] == pytest.approx(g * fall * rise, rel=1e-5)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_derivatives_by_the_discrete_adjoint(fmus, method):
    # So coarse that the lengths of steps do not depend on the inputs, which differences would see.
    simulation = from_fmu(fmus("drain3"), method=method, step_size=0.1, tolerance=1.0)
    inputs = {"times": [0.0, 0.3, 1.0], "inputs": TABLE}
    report = check_gradients(simulation, {"inputs": inputs}, show_progress=False)
    assert report.passed, report


def test_derivatives_equal_those_of_the_same_steps_in_jax(fixed_steps):
    def simulate(x, g, k, u):
        def one(x, t):
            def f(t, x):
                return -k * x**2 + g * (u[0] + (u[1] - u[0]) * t)

            h = 0.05
            a = f(t, x)
            b = f(t + h / 2, x + h / 2 * a)
            c = f(t + h / 2, x + h / 2 * b)
            d = f(t + h, x + h * c)
            return x + h / 6 * (a + 2 * b + 2 * c + d), None

        x = jax.lax.scan(one, x, jnp.arange(20) * 0.05)[0]
        return jnp.sum(x) * u[1]

    with jax.enable_x64(True):
        arguments = [jnp.array(v) for v in ([4.0, 2.0, 1.0], 2.0, [0.1, 0.2, 0.3], [1.0, 3.0])]
        expected = jax.grad(simulate, argnums=(0, 1, 2, 3))(*arguments)
    paths = ["start.x", "parameters.g", "parameters.k", "inputs.u"]
    found = fixed_steps.vector_jacobian_product(
        {"times": [0.0, 1.0], "inputs": {"time": [0.0, 1.0], "u": [1.0, 3.0]}},
        paths, ["outputs.y"], {"outputs.y": [0.0, 1.0]},
    )  # fmt: skip
    for path, value in zip(paths, expected, strict=True):
        np.testing.assert_allclose(found[path], value, rtol=1e-11)


def test_fmi_2_with_parameters_by_differences(fmus):
    tank = from_fmu(fmus("drain2"), parameter_derivatives="differences", tolerance=1e-10)
    paths = ["parameters.k", "parameters.g", "start.tank_level_1"]
    found = tank.vector_jacobian_product(
        {"times": [0.0, 1.0]}, paths, ["outputs.y"], {"outputs.y": [0.0, 1.0]}
    )
    step, at = 1e-6, dict(zip(paths, (0.1, 3.0, 2.0), strict=True))
    for path in paths:
        ends = [
            exact(1.0, *({**at, path: at[path] + s}[p] for p in (paths[2], *paths[:2])), 1.0)
            for s in (step, -step)
        ]
        assert found[path] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_states_that_an_event_changes_have_no_derivative(fmus):
    """The ball without its event indicator: the kick, a time event, is not known before."""
    lies = {
        'numberOfEventIndicators="1"': 'numberOfEventIndicators="0"',
        'modelIdentifier="ball2"': 'modelIdentifier="ball2" providesDirectionalDerivative="true"',
    }
    ball = from_fmu(fmus("ball2", "smooth_ball", replace=lies))
    inputs = {"times": [0.0, 0.3], "parameters": {"kick": 0.2}}
    with pytest.raises(CapabilityError, match="at an event") as caught:
        ball.vector_jacobian_product(inputs, ["start.h"], ["outputs.h"], {"outputs.h": [0.0, 1.0]})
    assert caught.value.code == "not_differentiable"


def test_progress(exchange):
    heard = []
    with listening(lambda fraction, message: heard.append((fraction, message))):
        exchange.apply({})
    assert heard[-1] == (1.0, "simulating")


def test_bad_inputs_name_their_field(exchange):
    for inputs, where in (
        ({"times": [0.0, 1.0, 1.0]}, "times"),
        ({"times": []}, "times"),
        ({"inputs": {"time": [1.0, 0.0], "u": [1.0, 2.0]}}, "inputs.time"),
        ({"inputs": {"time": [0.0, 1.0], "u": [1.0]}}, "inputs.u"),
        ({"inputs": {"time": [0.0, 1.0], "u": [1.0, 11.0]}}, "inputs.u"),
        ({"inputs": {"time": [0.0], "w": [1.0]}}, "inputs.w"),
        ({"start": {"x": [1.0, 2.0]}}, "start.x"),
        ({"times": [0.0, float("nan")]}, "times"),
    ):
        with pytest.raises(InputError) as caught:
            exchange.apply(inputs)
        assert where in (caught.value.path or "") + str(caught.value)


def test_a_singularity_is_an_error_and_not_an_endless_loop(fmus):
    tank = from_fmu(fmus("drain2"))
    with pytest.raises(ComponentError, match="no step is short enough"):
        tank.apply(
            {"times": [0.0, 10.0], "start": {"tank_level_1": 1.0}, "parameters": {"g": -30.0}}
        )


def test_a_step_that_fails(fmus):
    for interface in ("model_exchange", "co_simulation"):
        simulation = from_fmu(fmus("drain3"), interface=interface)
        with pytest.raises(ComponentError, match="the drain is blocked"):
            simulation.apply({"parameters": {"mode": 1}})
        assert simulation.apply({"times": [0.0]})["outputs"]["y"].tolist() == [7.0]


def test_no_end_of_the_default_experiment(fmus):
    path = fmus("drain3", "no_end", replace={'stopTime="1" ': ""})
    with pytest.raises(InputError, match="times"):
        from_fmu(path).apply({})
    with pytest.raises(DefinitionError):
        from_fmu(path, tolerance=-1.0)


def test_options_and_times_that_make_no_sense_are_named(fmus):
    path = fmus("drain3")
    with pytest.raises(DefinitionError, match=r"outputs as a list of names; found 'y'"):
        from_fmu(path, outputs="y")
    with pytest.raises(DefinitionError) as caught:
        from_fmu(path, outputs=["z"])
    assert str(caught.value).count("bad_fmu") == 1
    drain = from_fmu(path)
    with pytest.raises(InputError, match="numbers that rise"):
        drain.apply({"times": [0.0, np.inf]})
    with pytest.raises(InputError, match="do not fall"):
        drain.apply({"times": [0.0, 1.0], "inputs": {"time": [0.0, np.inf], "u": [1.0, 1.0]}})
