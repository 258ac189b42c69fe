"""One step of an FMU as a component: schemas, values and derivatives against FMPy and pure JAX."""

import gc
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import ComponentError, InputError, apply_component
from chainrule.errors import CapabilityError, DefinitionError
from chainrule.runtime import from_fmu, load_component

POINT = {"states": {"x": [3.0, 2.0, 1.0]}, "inputs": {"u": 0.5}, "parameters": {"g": 2.5}}
X, U, K, G = np.array([3.0, 2.0, 1.0]), 0.5, np.array([0.1, 0.2, 0.3]), 2.5


def rates(x, u, k, g):
    return -k * x**2 + g * u, u * jnp.sum(x)


@pytest.fixture(scope="module")
def step(fmus):
    return from_fmu(fmus("drain3"), kind="step")


@pytest.fixture(scope="module")
def step_2(fmus):
    return from_fmu(fmus("drain2"), kind="step")


def test_schema_of_fmi_3(step):
    inputs = step.differentiable_inputs
    assert list(inputs) == ["states.x", "inputs.u", "parameters.k", "parameters.g"]
    assert inputs["states.x"].shape == (3,)
    assert inputs["states.x"].units == "m"
    assert step.differentiable_outputs["derivatives.x"].units == "m/s"
    assert inputs["parameters.k"].bounds.ge == 0
    parameters = step.input_schema.model_fields["parameters"].annotation.model_fields
    assert parameters["k"].default.tolist() == [0.1, 0.2, 0.3]
    assert parameters["k"].description == "loss"
    assert list(step.differentiable_outputs) == ["derivatives.x", "outputs.x", "outputs.y"]


def test_schema_of_fmi_2(step_2):
    inputs = step_2.differentiable_inputs
    assert list(inputs) == ["states.tank_level_1", "inputs.u", "parameters.k", "parameters.g"]
    # Units and bounds of the declared type; states keep no bounds, for the stages of an integrator.
    assert inputs["states.tank_level_1"].units == "m"
    assert inputs["states.tank_level_1"].bounds is None
    parameters = step_2.input_schema.model_fields["parameters"].annotation.model_fields
    assert parameters["label"].default == "plain"
    assert parameters["doubled"].default == np.False_


def test_values(step, step_2):
    found = step.apply(POINT)
    dx, y = rates(X, U, K, G)
    np.testing.assert_allclose(found["derivatives"]["x"], dx, rtol=1e-14)
    np.testing.assert_allclose(found["outputs"]["y"], y, rtol=1e-14)
    found = step_2.apply(
        {"inputs": {"u": 2.0, "level": 3}, "parameters": {"doubled": True, "label": "new"}}
    )
    assert found["derivatives"]["tank_level_1"] == pytest.approx(-0.1 * 4 + 3 * 2)
    assert found["outputs"] == {"y": 2.0 * 2.0 * 2 * 3, "echo": "new"}
    # What one call set is not there in the next.
    assert step_2.apply({})["outputs"] == {"y": 2.0, "echo": "plain"}


def test_one_validated_point_in_a_loop(step, step_2):
    x = X.copy()
    point = step.input_schema(**{**POINT, "states": {"x": x}})
    for g in (1.0, 4.0):
        for _ in range(3):
            point.parameters.g = g
            found = step(point)["derivatives"]["x"]
            np.testing.assert_allclose(found, rates(x, U, K, g)[0], rtol=1e-13)
            x = x + 0.1 * found
            point.states.x = x
    point = step_2.input_schema(parameters={"doubled": True, "label": "new"})
    assert step_2(point)["outputs"] == step_2.apply(point)["outputs"] == {"y": 4.0, "echo": "new"}


def test_products_are_those_of_the_fmu(step):
    for name in ("jacobian_vector_product", "vector_jacobian_product"):
        assert step.capabilities[name].status == "native"
    paths = ["states.x", "inputs.u", "parameters.k", "parameters.g"]
    of = ["derivatives.x", "outputs.y"]
    tangents = [np.array(v) for v in ([1.0, -2.0, 0.5], 0.3, [1.0, 2.0, 3.0], 2.0)]
    seeds = (np.array([1.0, 2.0, -1.0]), np.array(0.7))
    with jax.enable_x64(True):
        point = tuple(map(jnp.asarray, (X, U, K, G)))
        pushed = jax.jvp(rates, point, tuple(map(jnp.asarray, tangents)))[1]
        pulled = jax.vjp(rates, *point)[1](tuple(map(jnp.asarray, seeds)))
    found = step.jacobian_vector_product(POINT, paths, of, dict(zip(paths, tangents, strict=True)))
    for path, value in zip(of, pushed, strict=True):
        np.testing.assert_allclose(found[path], value, rtol=1e-13)
    found = step.vector_jacobian_product(POINT, paths, of, dict(zip(of, seeds, strict=True)))
    for path, value in zip(paths, pulled, strict=True):
        np.testing.assert_allclose(found[path], value, rtol=1e-13)


def test_fmi_2_has_no_adjoint_so_that_it_is_derived(step_2):
    assert step_2.capabilities["vector_jacobian_product"].via == "jacobian"
    found = step_2.vector_jacobian_product(
        {}, ["states.tank_level_1", "inputs.u"], ["derivatives.tank_level_1"],
        {"derivatives.tank_level_1": 2.0},
    )  # fmt: skip
    assert found == {"states.tank_level_1": 2 * -2 * 0.1 * 2.0, "inputs.u": 2 * 3.0}


def test_parameters_by_differences_where_the_fmu_has_none(step_2, fmus):
    of, by = ["derivatives.tank_level_1"], ["parameters.k", "parameters.g"]
    with pytest.raises(ComponentError, match="fmi2GetDirectionalDerivative failed") as caught:
        step_2.jacobian({}, by, of)
    assert caught.value.code == "fmu_failed"
    assert "parameter_derivatives" in caught.value.message
    step = from_fmu(fmus("drain2"), kind="step", parameter_derivatives="differences")
    found = step.jacobian({}, [*by, "inputs.u"], of)["derivatives.tank_level_1"]
    np.testing.assert_allclose([found[p] for p in [*by, "inputs.u"]], [-4.0, 1.0, 3.0], rtol=1e-9)


def test_flags_off_no_derivatives_and_no_probe(fmus):
    off = {'providesDirectionalDerivatives="true" providesAdjointDerivatives="true" ': ""}
    path = fmus("drain3", "flags_off", replace=off)
    step = from_fmu(path, kind="step")
    assert step.capabilities["jacobian_vector_product"].status == "absent"
    with pytest.raises(CapabilityError):
        step.jacobian({}, ["states.x"], ["outputs.y"])
    finite = from_fmu(path, kind="step", derivatives="finite")
    found = finite.jacobian({}, ["states.x"], ["outputs.y"])["outputs.y"]["states.x"]
    np.testing.assert_allclose(found, np.ones(3), rtol=1e-7)
    assert from_fmu(path).capabilities["vector_jacobian_product"].status == "absent"


def test_a_jax_integrator_differentiates_a_simulation(step):
    """RK4 by `lax.scan` through the component equals the same scan over the equations, digit by digit."""

    def simulate(f, x, g, k):
        def one(x, t):
            def u(t):
                return 1 + 2 * t

            h = 0.05
            a = f(t, x, u(t), k, g)
            b = f(t + h / 2, x + h / 2 * a, u(t + h / 2), k, g)
            c = f(t + h / 2, x + h / 2 * b, u(t + h / 2), k, g)
            d = f(t + h, x + h * c, u(t + h), k, g)
            return x + h / 6 * (a + 2 * b + 2 * c + d), None

        return jnp.sum(jax.lax.scan(one, x, jnp.arange(20) * 0.05)[0] ** 2)

    def by_fmu(t, x, u, k, g):
        given = {"time": t, "states": {"x": x}, "inputs": {"u": u}, "parameters": {"k": k, "g": g}}
        return apply_component(step, given)["derivatives"]["x"]

    def by_hand(t, x, u, k, g):
        return -k * x**2 + g * u

    with jax.enable_x64(True):
        arguments = jnp.array([4.0, 2.0, 1.0]), jnp.array(2.0), jnp.array([0.1, 0.2, 0.3])

        def differentiate(f):
            both = jax.value_and_grad(lambda *a: simulate(f, *a), argnums=(0, 1, 2))
            return jax.jit(both)(*arguments)

        found, expected = differentiate(by_fmu), differentiate(by_hand)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


def test_a_model_with_events_does_not_depend_on_the_call_before(fmus):
    ball = from_fmu(fmus("ball2"), kind="step")
    point = {"states": {"h": 1.0, "v": -3.0}}
    first = ball.apply(point)
    ball.apply({"states": {"h": 0.0, "v": 2.0}, "time": 0.5})
    assert ball.apply(point) == first == {
        "derivatives": {"h": -3.0, "v": -9.81},
        "outputs": {"h": 1.0, "v": -3.0},
    }  # fmt: skip


def test_co_simulation_steps_and_their_state(fmus):
    step = from_fmu(fmus("drain3"), kind="step", interface="co_simulation")
    first = step.apply({"step": 0.1, "parameters": {"g": 2.5}})
    second = step.apply({"step": 0.1, "time": first["time"], "state": first["state"]})
    # Another component, as another process would have it.
    again = from_fmu(fmus("drain3"), kind="step", interface="co_simulation").apply(
        {"step": 0.1, "time": 0.1, "state": first["state"]}
    )
    np.testing.assert_array_equal(second["outputs"]["x"], again["outputs"]["x"])
    x = np.array([4.0, 2.0, 1.0])
    for _ in range(200):
        x = x + 0.001 * (-K * x**2 + G)
    np.testing.assert_allclose(second["outputs"]["x"], x, rtol=1e-12)
    with pytest.raises(ComponentError, match="fmi3DeserializeFMUState"):
        step.apply({"state": np.zeros(3, np.uint8)})
    with pytest.raises(DefinitionError, match="canSerializeFMUState"):
        from_fmu(fmus("drain2"), kind="step", interface="co_simulation")


def test_bad_values_name_their_field(step):
    for inputs, where in (
        ({"parameters": {"zz": 1.0}}, "parameters.zz"),
        ({"parameters": {"k": [0.1, -1.0, 0.2]}}, "parameters.k"),
        ({"inputs": {"u": 11.0}}, "inputs.u"),
        ({"states": {"x": [1.0, 2.0]}}, "states.x"),
        ({"parameters": {"mode": 3}}, "parameters.mode"),
    ):
        with pytest.raises(InputError) as caught:
            step.apply(inputs)
        assert where in str(caught.value)
    assert step.apply({})["outputs"]["y"] == 7.0


def test_a_failing_fmu_says_what_it_logged_and_the_next_call_works(step, step_2):
    for each in (step, step_2):
        with pytest.raises(ComponentError, match="the drain is blocked") as caught:
            each.apply({"parameters": {"mode": 1}})
        assert caught.value.code == "fmu_failed"
        assert caught.value.details["status"] == 3
        assert each.apply({})


def test_an_fmu_that_says_why_it_fails_only_if_it_is_asked_to(fmus, caplog):
    silent = {"parameters": {"mode": 3}}
    for kind in ("step", "simulation"):
        inputs = silent if kind == "step" else silent | {"times": [0.0, 0.5]}
        with pytest.raises(
            ComponentError, match=r"debug_logging=True of from_fmu lets it say more"
        ):
            from_fmu(fmus("drain2"), kind=kind).apply(inputs)
        with pytest.raises(ComponentError, match=r"It says: the drain is blocked\. \[fmu_failed\]"):
            from_fmu(fmus("drain2"), kind=kind, debug_logging=True).apply(inputs)


def test_two_threads(step):
    wrong = []

    def work(u):
        for _ in range(50):
            found = step.apply({"inputs": {"u": u}})["outputs"]["y"]
            if found != 7 * u:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(u,)) for u in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_instance_only(fmus):
    flag = 'providesDirectionalDerivative="true"'
    only = {flag: f'{flag} canBeInstantiatedOnlyOncePerProcess="true"'}
    step = from_fmu(fmus("drain2", "only_one", replace=only), kind="step")
    threads = [threading.Thread(target=step.apply, args=({},)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(step(step.read_model({}, "apply"))) == 2


def test_files_that_are_no_fmu(tmp_path, fmus):
    no_zip = tmp_path / "no.fmu"
    no_zip.write_bytes(b"not a zip")
    empty = tmp_path / "empty.fmu"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    elsewhere = tmp_path / "windows.fmu"
    with zipfile.ZipFile(fmus("drain2")) as source, zipfile.ZipFile(elsewhere, "w") as archive:
        archive.writestr("modelDescription.xml", source.read("modelDescription.xml"))
        archive.writestr("binaries/win64/drain2.dll", "")
    old = tmp_path / "old.fmu"
    with zipfile.ZipFile(old, "w") as archive:
        archive.writestr("modelDescription.xml", "<fmiModelDescription/>")
    for path, reason in (
        (no_zip, "is not an archive"),
        (empty, "has no modelDescription.xml"),
        (elsewhere, "has no binary for this platform"),
        (old, "cannot be read"),
    ):
        with pytest.raises(DefinitionError, match=reason) as caught:
            load_component(path)
        assert caught.value.code == "bad_fmu"
    with pytest.raises(DefinitionError, match="does not exist") as caught:
        from_fmu(tmp_path / "absent.fmu")
    assert caught.value.code == "bad_fmu"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('start="2" declaredType', 'start="two" declaredType'),
        ('start="0" min="0"', 'start="99999999999999999999" min="0"'),
        ('min="0"/></Scalar', 'min="low"/></Scalar'),
        ('stopTime="1"', 'stopTime="late"'),
        (' derivative="2"', ""),
        ('<Derivatives><Unknown index="3"/>', '<Derivatives><Unknown index="-1"/>'),
    ],
)
def test_descriptions_that_cannot_be_used(fmus, tmp_path, old, new):
    path = copied(fmus("drain2"), tmp_path / "odd.fmu", replace=(old, new))
    with pytest.raises(DefinitionError, match="model description that cannot be used") as caught:
        from_fmu(path)
    assert caught.value.code == "bad_fmu"


@pytest.mark.parametrize("more", [{"../outside": "x"}, {"/outside": "x"}, {"c:outside": "x"}])
def test_archives_that_cannot_be_unpacked(fmus, tmp_path, monkeypatch, more):
    """Nothing is written elsewhere, no folder is left, and the working directory stays."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    path, where = copied(fmus("drain2"), tmp_path / "odd.fmu", more=more, library=b"no"), Path.cwd()
    tank = from_fmu(path)
    for _ in range(2):
        with pytest.raises(DefinitionError, match="cannot be loaded") as caught:
            tank.apply({"times": [0.0, 1.0]})
        assert caught.value.code == "bad_fmu"
        assert Path.cwd() == where
    del tank, caught
    gc.collect()
    assert {*tmp_path.iterdir()} == {scratch, path}
    assert [*scratch.iterdir()] == []
    assert not Path("/outside").exists()


def test_what_a_killed_process_has_unpacked_is_removed_by_the_next(fmus, tmp_path, monkeypatch):
    """Servers end their workers in this way."""
    path = fmus("drain2")
    code = """
import os, signal, sys
from chainrule.runtime import from_fmu
tank = from_fmu(sys.argv[1])
tank.apply({"times": [0.0]})
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=False)
    (left,) = tmp_path.iterdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tank = from_fmu(path)
    tank.apply({"times": [0.0]})
    assert not left.exists()
    assert len([*tmp_path.iterdir()]) == 1
    del tank
    gc.collect()
    assert [*tmp_path.iterdir()] == []


def copied(path, target, *, replace=("", ""), more=None, library=None):
    """An FMU with another description, more files, or another library."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name == "modelDescription.xml":
                assert replace[0] in content.decode()
                content = content.decode().replace(*replace, 1).encode()
            elif library is not None:
                content = library
            archive.writestr(name, content)
        for name, content in (more or {}).items():
            archive.writestr(name, content)
    return target


def test_wrong_token(fmus):
    path = fmus("drain3", "other_token", replace={"{drain-3}": "{other}"})
    with pytest.raises(DefinitionError, match="cannot be loaded"):
        from_fmu(path).apply({})


def test_bad_options(fmus):
    path = fmus("drain3")
    for options in (
        {"kind": "steps"},
        {"method": "euler"},
        {"outputs": ["nothing"]},
        {"parameters": ["nothing"]},
        {"parameter_derivatives": "none"},
        {"step_size": 0.0},
    ):
        with pytest.raises(DefinitionError):
            from_fmu(path, **options)
    with pytest.raises(DefinitionError, match="has no interface co_simulation"):
        from_fmu(fmus("ball2"), interface="co_simulation")


def test_chosen_variables(fmus):
    step = from_fmu(fmus("drain3"), kind="step", parameters=["g"], outputs=["der(x)", "y"])
    assert list(step.differentiable_inputs) == ["states.x", "inputs.u", "parameters.g"]
    assert step.apply({})["outputs"]["der_x"].tolist() == pytest.approx([0.4, 1.2, 1.7])


def test_every_type_of_fmi_3_passes_unchanged(fmus, caplog):
    echo = from_fmu(fmus("echo3"))
    assert "left out, for their types: texts" in caplog.text
    extremes = {
        "float64": [1e-300, -np.inf],
        "float32": [1.1754944e-38, 3.4028235e38],
        "boolean": [True, False],
    }
    for bits in (8, 16, 32, 64):
        extremes[f"int{bits}"] = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
        extremes[f"uint{bits}"] = [2**bits - 1, 1]
    inputs = {"time": [0.0], "option": [9007199254740993], "text": ["näh"]}
    for name, (first, second) in extremes.items():
        dtype = "bool" if name == "boolean" else name
        inputs |= {name: np.array([first], dtype), f"{name}s": np.array([[second, first]], dtype)}
    found = echo.apply({"times": [0.0, 1.0], "inputs": inputs})["outputs"]
    assert found.pop("text_out") == ["näh", "näh"]
    assert found.pop("option_out").tolist() == [9007199254740993] * 2
    assert len(found) == 22
    for name, (first, second) in extremes.items():
        dtype = "bool" if name == "boolean" else name
        assert found[f"{name}_out"].dtype == found[f"{name}s_out"].dtype == dtype
        np.testing.assert_array_equal(found[f"{name}_out"], np.array([first] * 2, dtype))
        np.testing.assert_array_equal(found[f"{name}s_out"], np.array([[second, first]] * 2, dtype))
