"""OpenMDAO both ways, against the real package."""

import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel, Field

from chainrule import Component, ComponentError, InputError, apply_component
from chainrule.errors import CapabilityError, DefinitionError
from chainrule.runtime import (
    Array,
    Complex128,
    Differentiable,
    Float64,
    SparseArray,
    component,
    load_component,
)
from chainrule.runtime.testing import check_gradients

om = pytest.importorskip("openmdao.api")
# Advice about groups and solvers.
pytestmark = pytest.mark.filterwarnings("ignore::openmdao.utils.om_warnings.OpenMDAOWarning")

import chainrule.openmdao  # noqa: E402

Scalar = Differentiable[Float64]
Pair = Differentiable[Array[(2,), Float64]]
Vector = Differentiable[Array[("n",), Float64]]


@component(derivatives="finite")
def first(z: Pair, x: Scalar, y2: Scalar) -> Scalar:
    return z[0] ** 2 + z[1] + x - 0.2 * y2


@component(framework="jax")
def second(z: Pair, y1: Scalar) -> Scalar:
    return jnp.sqrt(jnp.abs(y1)) + z[0] + z[1]


def sellar(partials, driver=None):
    problem = om.Problem(reports=False)
    model = problem.model
    one = chainrule.openmdao.component(
        first, {"z": [5.0, 2.0], "x": 1.0, "y2": 1.0}, partials=partials
    )
    two = chainrule.openmdao.component(
        Component.from_api(second), {"z": [5.0, 2.0], "y1": 1.0}, partials=partials
    )
    cycle = model.add_subsystem("cycle", om.Group(), promotes=["*"])
    cycle.add_subsystem("d1", one, promotes=["z", "x", "y2", ("result", "y1")])
    cycle.add_subsystem("d2", two, promotes=["z", "y1", ("result", "y2")])
    model.add_subsystem(
        "f", om.ExecComp("obj = x**2 + z[1] + y1 + exp(-y2)", z=np.zeros(2), x=0.0), promotes=["*"]
    )
    model.set_input_defaults("z", np.array([5.0, 2.0]))
    model.set_input_defaults("x", 1.0)
    cycle.nonlinear_solver = om.NewtonSolver(
        solve_subsystems=False, iprint=-1, atol=1e-10, rtol=1e-12
    )
    cycle.linear_solver = om.ScipyKrylov(iprint=-1) if partials == "products" else om.DirectSolver()
    if driver is not None:
        problem.driver = driver
        model.add_design_var("x", lower=0, upper=10)
        model.add_design_var("z", lower=[-10, 0], upper=10)
        model.add_objective("obj")
        model.add_constraint("y1", lower=3.16)
        model.add_constraint("y2", upper=24.0)
    problem.setup()
    return problem


@pytest.mark.parametrize("partials", ["dense", "products"])
def test_sellar_with_our_disciplines(partials):
    problem = sellar(partials)
    problem.run_model()
    np.testing.assert_allclose(problem.get_val("y1"), 25.58830237, rtol=1e-8)
    np.testing.assert_allclose(problem.get_val("obj"), 28.58830816, rtol=1e-8)
    totals = problem.compute_totals(of=["obj"], wrt=["x", "z"])
    np.testing.assert_allclose(totals["obj", "x"], [[2.98061391]], rtol=1e-6)
    np.testing.assert_allclose(totals["obj", "z"], [[9.61001056, 1.78448534]], rtol=1e-6)
    data = problem.check_partials(out_stream=None, includes=["*d1", "*d2"])
    for blocks in data.values():
        for block in blocks.values():
            assert block["abs error"].forward < 1e-4


def test_slsqp_through_our_disciplines():
    problem = sellar("dense", om.ScipyOptimizeDriver(optimizer="SLSQP", disp=False))
    problem.run_driver()
    np.testing.assert_allclose(problem.get_val("obj"), 3.18339395, rtol=1e-6)


class Wing(BaseModel):
    chord: Annotated[Differentiable[Array[("n",), Float64, "m"]], Field(gt=0)]


@component(derivatives="finite")
def area(wings: list[Wing], mode: str = "fine") -> Differentiable[Array[("n",), Float64, "m**2"]]:
    return sum(wing.chord for wing in wings) ** 2


def test_names_units_and_refused_points():
    wings = {"wings": [{"chord": [1.0, 2.0]}, {"chord": [3.0, 4.0]}]}
    wrapped = chainrule.openmdao.component(area, wings)
    assert wrapped.paths["wings_0_chord"] == "wings.[0].chord"
    problem = om.Problem(reports=False)
    problem.model.add_subsystem("s", om.IndepVarComp("c", np.ones(2), units="cm"))
    problem.model.add_subsystem("w", wrapped)
    problem.model.connect("s.c", "w.wings_0_chord")
    problem.setup()
    problem.set_val("s.c", [100.0, 200.0])
    problem.run_model()
    np.testing.assert_allclose(problem.get_val("w.result"), [16.0, 36.0])  # 100 cm are 1 m
    np.testing.assert_allclose(problem.get_val("w.result", units="cm**2"), [160000.0, 360000.0])
    problem.set_val("s.c", [-1.0, 1.0])
    with pytest.raises(om.AnalysisError, match="wings"):
        problem.run_model()
    problem.set_val("s.c", [100.0, 200.0])
    problem.run_model()
    bad = om.Problem(reports=False)
    wrong = chainrule.openmdao.component(area, wings, units={"result": "flurbs"})
    bad.model.add_subsystem("w", wrong)
    with pytest.raises(InputError, match="does not know the units"):
        bad.setup()


class State(BaseModel):
    x: Pair
    rate: Scalar = 0.5


class Next(BaseModel):
    x: Pair


def test_complex_numbers_are_refused_by_name():
    @component(framework="jax")
    def waves(x: Vector) -> Differentiable[Array[("n",), Complex128]]:
        return x * (1 + 2j)

    with pytest.raises(InputError, match="result is complex128, and OpenMDAO"):
        chainrule.openmdao.component(waves, {"x": np.ones(2)})


def test_an_output_with_the_name_of_an_input():
    module = ModuleType("advance")
    vars(module).update(InputSchema=State, OutputSchema=Next)
    module.apply = lambda inputs: {"x": inputs.x * (1 + inputs.rate)}
    module.jacobian = lambda inputs, jac_inputs, jac_outputs: {
        "x": {"x": (1 + inputs.rate) * np.eye(2), "rate": inputs.x}
    }
    wrapped = chainrule.openmdao.component(load_component(module), {"x": [1.0, 2.0]})
    assert wrapped.paths == {"x": "x", "rate": "rate", "x_out": "x"}
    problem = om.Problem(reports=False)
    problem.model.add_subsystem("a", wrapped, promotes=["*"])
    problem.setup()
    problem.run_model()
    np.testing.assert_allclose(problem.get_val("x_out"), [1.5, 3.0])
    totals = problem.compute_totals(of=["x_out"], wrt=["x", "rate"])
    np.testing.assert_allclose(totals["x_out", "x"], 1.5 * np.eye(2))
    np.testing.assert_allclose(totals["x_out", "rate"], [[1.0], [2.0]])

    class Both(Next):
        x_out: Pair

    module.OutputSchema = Both
    module.apply = lambda inputs: {"x": inputs.x, "x_out": inputs.x}
    with pytest.raises(InputError, match="get the ending _out"):
        chainrule.openmdao.component(load_component(module), {"x": [1.0, 2.0]})


def test_sparse_rows_and_columns():
    @component(framework="numpy")
    def plain(x: Vector) -> Vector:
        return x

    module = ModuleType("stencil")
    schemas = {"InputSchema": plain.input_schema, "OutputSchema": plain.output_schema}

    def jacobian(inputs, jac_inputs, jac_outputs):
        n = inputs.x.size
        rows = np.arange(n)
        indices = np.concatenate([np.stack([rows, rows], 1), np.stack([rows[1:], rows[:-1]], 1)])
        values = np.concatenate([2 * inputs.x, -np.ones(n - 1)])
        return {"result": {"x": SparseArray((n, n), indices, values)}}

    vars(module).update(
        schemas,
        apply=lambda inputs: {"result": inputs.x**2 - np.concatenate([[0.0], inputs.x[:-1]])},
        jacobian=jacobian,
    )
    wrapped = chainrule.openmdao.component(
        load_component(module), {"x": np.ones(5)}, partials="sparse"
    )
    problem = om.Problem(reports=False)
    problem.model.add_subsystem("s", wrapped, promotes=["*"])
    problem.setup()
    problem.set_val("x", np.arange(1.0, 6.0))
    problem.run_model()
    dense = np.diag(2 * np.arange(1.0, 6.0)) - np.diag(np.ones(4), -1)
    np.testing.assert_allclose(
        problem.compute_totals(of=["result"], wrt=["x"])["result", "x"], dense
    )
    declared = problem.check_partials(out_stream=None)["s"]["result", "x"]
    places = sorted(zip(declared["rows"].tolist(), declared["cols"].tolist(), strict=True))
    assert places == sorted(zip(*map(np.ndarray.tolist, np.nonzero(dense)), strict=True))


@component(framework="jax")
def residual(y: Pair, a: Scalar) -> Pair:
    return jnp.stack([y[0] ** 2 - a, y[0] * y[1] - 1.0])


class OnlyProducts:
    """A component without a Jacobian."""

    def __init__(self, component):
        self._component = component
        self.available_endpoints = [e for e in component.available_endpoints if e != "jacobian"]

    def jacobian(self, *_):
        raise AssertionError("a Jacobian was asked for")

    def __getattr__(self, name):
        return getattr(self._component, name)


@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize("partials", ["dense", "products"])
def test_an_implicit_component(partials, mode):
    wrapped = chainrule.openmdao.component(
        residual if partials == "dense" else OnlyProducts(residual),
        {"y": [1.0, 1.0], "a": 4.0},
        states={"y": "result"},
        partials=partials,
    )
    wrapped.nonlinear_solver = om.NewtonSolver(solve_subsystems=False, iprint=-1)
    wrapped.linear_solver = (
        om.DirectSolver() if partials == "dense" else om.ScipyKrylov(iprint=-1, atol=1e-14)
    )
    problem = om.Problem(reports=False)
    problem.model.add_subsystem("r", wrapped, promotes=["*"])
    problem.setup(mode=mode)
    problem.set_val("a", 9.0)
    problem.run_model()
    np.testing.assert_allclose(problem.get_val("y"), [3.0, 1 / 3], rtol=1e-8)
    totals = problem.compute_totals(of=["y"], wrt=["a"])["y", "a"]
    np.testing.assert_allclose(totals.ravel(), [1 / 6, -1 / 54], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partials": "full"}, "'dense', 'sparse' or 'products'"),
        ({"states": {"zz": "result"}}, "Expected states"),
        ({"units": {"zz": "m"}}, "Expected units of y, a, result; found 'zz'"),
        ({"states": {"a": "result"}}, "has 1 elements, and its residual result 2"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        chainrule.openmdao.component(residual, {"y": [1.0, 1.0], "a": 4.0}, **options)


def test_a_missing_example_is_asked_for():
    for each in (first, Component.from_api(first)):
        with pytest.raises(
            InputError, match=r"pass an example of all of them, example=\{'z': …\}"
        ) as caught:
            chainrule.openmdao.component(each)
        assert caught.value.path == "z"
        with pytest.raises(InputError, match=r"^apply: at 'x': Field required"):
            chainrule.openmdao.component(each, {"z": [5.0, 2.0], "y2": 1.0})


def test_a_component_without_derivatives_is_refused():
    @component
    def plain(x: Scalar) -> Scalar:
        return x

    with pytest.raises(CapabilityError, match="has no jacobian"):
        chainrule.openmdao.component(plain, {"x": 1.0})


def openmdao_sellar():
    """Sellar's problem in OpenMDAO itself."""
    problem = om.Problem()
    cycle = problem.model.add_subsystem("cycle", om.Group(), promotes=["*"])
    one = om.ExecComp("y1 = z[0]**2 + z[1] + x - 0.2*y2", z=np.zeros(2))
    two = om.ExecComp("y2 = abs(y1)**.5 + z[0] + z[1]", z=np.zeros(2))
    cycle.add_subsystem("d1", one, promotes=["*"])
    cycle.add_subsystem("d2", two, promotes=["*"])
    problem.model.add_subsystem(
        "f", om.ExecComp("obj = x**2 + z[1] + y1 + exp(-y2)", z=np.zeros(2)), promotes=["*"]
    )
    problem.model.set_input_defaults("z", np.array([5.0, 2.0]))
    problem.model.set_input_defaults("x", 1.0)
    cycle.nonlinear_solver = om.NewtonSolver(
        solve_subsystems=False, iprint=-1, atol=1e-11, rtol=1e-12, maxiter=30
    )
    cycle.linear_solver = om.DirectSolver()
    problem.setup()
    return problem


@pytest.fixture(scope="module")
def problem():
    return chainrule.openmdao.from_problem(openmdao_sellar, ["x", "z"], ["obj", "y1"])


def test_a_problem_under_jit_and_grad(problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(True):

        def loss(x, z):
            return jnp.sum(apply_component(problem, {"x": x, "z": z})["obj"] ** 2)

        x, z = jnp.array([1.0]), jnp.array([5.0, 2.0])
        _, (dx, dz) = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, z)
        np.testing.assert_allclose(dx, [170.42141816], rtol=1e-6)
        np.testing.assert_allclose(dz, [549.46788654, 102.03083338], rtol=1e-6)
        mapped = jax.vmap(jax.grad(loss), (0, None))(jnp.array([[1.0], [2.0]]), z)
        np.testing.assert_allclose(mapped[0], dx)
    assert list(tmp_path.iterdir()) == []  # no reports


def test_derivatives_are_never_those_of_another_point(problem):
    points = [{"x": [1.0], "z": [5.0, 2.0]}, {"x": [2.0], "z": [4.0, 1.0]}]
    separate = [problem.jacobian(point)["obj"]["x"] for point in points]
    assert not np.allclose(*separate)
    problem.apply(points[0])
    np.testing.assert_allclose(problem.jacobian(points[1])["obj"]["x"], separate[1], rtol=1e-9)
    report = check_gradients(problem, {"inputs": points[0]}, show_progress=False)
    assert report.passed, [check.summary for check in report.failures]


def test_threads_share_one_problem(problem):
    points = [{"x": [float(k)], "z": [5.0, 2.0]} for k in range(4)]
    alone = [problem.apply(point)["obj"] for point in points]
    found = [None] * 4

    def run(k):
        found[k] = problem.apply(points[k])["obj"]

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(found, alone, rtol=1e-9)


def test_no_convergence_is_an_error_and_the_next_call_is_fine():
    def stubborn():
        problem = openmdao_sellar()
        problem.model.cycle.nonlinear_solver.options["maxiter"] = 1
        return problem

    failing = chainrule.openmdao.from_problem(stubborn, {"x": "x", "z": "z"}, {"objective": "obj"})
    with pytest.raises(ComponentError, match="converge"):
        failing.apply({"x": [1.0], "z": [5.0, 2.0]})


def test_a_point_without_a_solution_does_not_spoil_the_next():
    """The solver begins where the last run ended, which is not a number here."""

    def warm():
        problem = openmdao_sellar()
        problem.model.cycle.nonlinear_solver = om.NonlinearBlockGS(
            iprint=-1, atol=1e-12, maxiter=50
        )
        return problem

    program = chainrule.openmdao.from_problem(warm, ["x", "z"], ["obj"])
    point = {"x": [1.0], "z": [5.0, 2.0]}
    for _ in range(2):
        np.testing.assert_allclose(program.apply(point)["obj"], 28.58830817, rtol=1e-9)
        with pytest.raises(ComponentError, match="NaN"):
            program.apply({"x": [np.nan], "z": [5.0, 2.0]})


def test_cycles_whose_derivatives_would_be_wrong_are_refused():
    """OpenMDAO's own example of Sellar's problem has no linear solver for its cycle."""
    from openmdao.test_suite.components.sellar_feature import SellarMDA

    def made(linear_solver=None, *, differences=False):
        problem = om.Problem(SellarMDA(), reports=False)
        if differences:
            problem.model.approx_totals()
        problem.setup()
        problem.set_solver_print(level=-1)
        problem.set_val("x", 1.0)
        problem.set_val("z", [5.0, 2.0])
        if linear_solver is not None:
            problem.model.cycle.linear_solver = linear_solver
        return problem

    with pytest.raises(DefinitionError, match=r"d1, d2 .*linear_solver = om\.DirectSolver"):
        chainrule.openmdao.from_problem(made, ["x", "z"], ["obj"])
    for make in (
        lambda: made(om.DirectSolver()),
        lambda: made(om.LinearBlockGS(maxiter=50)),
        lambda: made(differences=True),
    ):
        program = chainrule.openmdao.from_problem(make, ["x", "z"], ["obj"])
        found = program.jacobian({})["obj"]
        np.testing.assert_allclose(found["x"], [[2.98061391]], rtol=1e-3)
        np.testing.assert_allclose(found["z"], [[9.61001056, 1.78448534]], rtol=1e-3)


def test_a_complex_step_through_a_component_is_refused():
    problem = om.Problem(reports=False)
    problem.model.add_subsystem(
        "d", chainrule.openmdao.component(second, {"z": [5.0, 2.0], "y1": 1.0})
    )
    problem.model.approx_totals(method="cs")
    problem.setup(force_alloc_complex=True)
    problem.run_model()
    with pytest.raises(InputError, match="complex step"):
        problem.compute_totals(["d.result"], ["d.y1"])


def test_metadata_is_the_schema():
    def made():
        """A tank."""
        problem = om.Problem()
        ivc = problem.model.add_subsystem("i", om.IndepVarComp(), promotes=["*"])
        ivc.add_output("height", 2.0, units="m", lower=0.0, upper=5.0, desc="of the water")
        problem.model.add_subsystem(
            "c", om.ExecComp("p = 9.81*height", height={"units": "m"}), promotes=["*"]
        )
        problem.setup()
        return problem

    tank = chainrule.openmdao.from_problem(made, ["height"], ["p"], name="tank")
    spec = tank.differentiable_inputs["height"]
    assert (tank.name, spec.units, spec.bounds.ge, spec.bounds.le) == ("tank", "m", 0, 5)
    np.testing.assert_allclose(tank.apply({})["p"], [19.62])
    with pytest.raises(InputError, match="larger"):
        tank.apply({"height": [6.0]})
    with pytest.raises(InputError, match="f64"):
        tank.apply({"height": [1.0, 2.0]})


def test_bounds_of_design_variables_are_those_of_the_schema():
    def made():
        problem = om.Problem(reports=False)
        model = problem.model
        model.add_subsystem("c", om.ExecComp("y = 3*a - b + d", a={"units": "m"}), promotes=["*"])
        model.add_design_var("a", lower=100.0, upper=500.0, units="cm")
        model.add_design_var("b", upper=2.0)
        model.add_design_var("d", lower=1.0, ref=10.0)
        problem.setup()
        return problem

    line = chainrule.openmdao.from_problem(made, ["a", "b", "d"], ["y"])
    found = {name: spec.bounds for name, spec in line.differentiable_inputs.items()}
    assert (found["a"].ge, found["a"].le) == (1.0, 5.0)
    assert (found["b"].ge, found["b"].le) == (None, 2.0)
    assert found["d"] is None
    best = chainrule.minimize(line, {"a": [2.0], "b": [0.0]}, objective="y", free=["a", "b"])
    np.testing.assert_allclose([best.x["a"][0], best.x["b"][0]], [1.0, 2.0])


@pytest.mark.parametrize(
    ("make", "inputs", "message"),
    [
        (openmdao_sellar, ["zz"], "no variable 'zz'"),
        (openmdao_sellar, ["zs"], "Did you mean 'z'"),
        (
            openmdao_sellar,
            ["y1"],
            "'y1' cannot be an input: the problem computes it, in 'cycle.d1.y1'",
        ),
        (3, ["x"], "a function that makes the problem; found an int"),
        (openmdao_sellar, [], "found none"),
        (openmdao_sellar, "x", r"Write \['x'\]"),
        (openmdao_sellar, {"_x": "x"}, "identifiers"),
        (openmdao_sellar, {"a b": "x"}, "identifiers"),
        (lambda: 3, ["x"], "found int"),
        (lambda: om.Problem(reports=False), ["x"], r"call problem.setup\(\)"),
    ],
)
def test_bad_definitions(make, inputs, message):
    with pytest.raises(DefinitionError, match=message):
        chainrule.openmdao.from_problem(make, inputs, ["obj"])


class Switched(om.ExplicitComponent):
    """y = n x, with a discrete n and a discrete text."""

    def setup(self):
        self.add_input("x", 1.0)
        self.add_discrete_input("n", 3)
        self.add_discrete_input("mode", "fine")
        self.add_output("y", 1.0)
        self.declare_partials("y", "x")

    def compute(self, inputs, outputs, discrete_inputs, discrete_outputs):
        if inputs["x"] < 0 or not isinstance(discrete_inputs["mode"], str):
            raise om.AnalysisError("cannot be analysed")
        outputs["y"] = inputs["x"] * discrete_inputs["n"]

    def compute_partials(self, inputs, partials, discrete_inputs):
        partials["y", "x"] = discrete_inputs["n"]


def test_discrete_variables_stay_as_the_problem_has_them():
    def made():
        problem = om.Problem()
        problem.model.add_subsystem("c", Switched(), promotes=["*"])
        problem.setup()
        return problem

    switched = chainrule.openmdao.from_problem(made, ["x"], ["y"])
    np.testing.assert_allclose(switched.apply({"x": [2.0]})["y"], [6])
    with pytest.raises(ComponentError, match="cannot be analysed"):
        switched.apply({"x": [-1.0]})
    np.testing.assert_allclose(switched.apply({"x": [2.0]})["y"], [6])
    np.testing.assert_allclose(switched.jacobian({"x": [2.0]}, ["x"], ["y"])["y"]["x"], [[3]])
    with pytest.raises(DefinitionError, match="'n' is discrete"):
        chainrule.openmdao.from_problem(made, ["x", "n"], ["y"])


def test_colourings_and_recordings_are_not_left_in_the_working_folder(tmp_path, monkeypatch):
    """A vector in an `ExecComp` is coloured when it is linearised, which OpenMDAO writes into files."""

    def coloured():
        problem = om.Problem()
        two = om.ExecComp(["y = 2*x", "w = 3*v"], x=np.zeros(2), y=np.zeros(2))
        problem.model.add_subsystem("two", two, promotes=["*"])
        problem.setup()
        return problem

    monkeypatch.chdir(tmp_path)
    for folder in (None, tmp_path / "chosen"):
        if folder is not None:
            monkeypatch.setenv("OPENMDAO_WORKDIR", str(folder))
        program = chainrule.openmdao.from_problem(coloured, ["x", "v"], ["y", "w"])
        blocks = program.jacobian({"x": [1.0, 2.0], "v": [1.0]})
        np.testing.assert_array_equal(blocks["y"]["x"], 2 * np.eye(2))
        assert not blocks["y"]["v"].any()  # no path leads there
        assert not list(tmp_path.glob("*_out"))
        assert folder is None or list(folder.glob("*_out"))
    assert os.environ["OPENMDAO_WORKDIR"] == str(tmp_path / "chosen")


def test_nothing_is_left_in_the_working_folder():
    assert not list(Path.cwd().glob("*_out"))


def test_a_point_that_cannot_be_analysed_costs_only_its_call():
    class Narrow(om.ExplicitComponent):
        def setup(self):
            self.add_input("x", 1.0)
            self.add_output("y", 1.0)
            self.declare_partials("y", "x")

        def compute(self, inputs, outputs):
            if inputs["x"] > 2:
                raise om.AnalysisError("too far")
            outputs["y"] = inputs["x"] ** 2

        def compute_partials(self, inputs, partials):
            partials["y", "x"] = 2 * inputs["x"]

    def narrow():
        problem = om.Problem(reports=False)
        problem.model.add_subsystem("narrow", Narrow(), promotes=["*"])
        problem.setup()
        return problem

    program = chainrule.openmdao.from_problem(narrow, ["x"], ["y"])
    for _ in range(2):
        for call in (program.apply, program.jacobian):
            with pytest.raises(ComponentError, match=r"AnalysisError: .*too far"):
                call({"x": [3.0]})
        assert program.jacobian({"x": [1.5]})["y"]["x"].item() == 3.0
        assert program.apply({"x": [1.5]})["y"].item() == 2.25


def test_units_that_do_not_convert_are_refused():
    problem = om.Problem(reports=False)
    problem.model.add_subsystem("s", om.IndepVarComp("c", np.ones(2), units="kg"))
    wings = {"wings": [{"chord": [1.0, 2.0]}]}
    problem.model.add_subsystem("w", chainrule.openmdao.component(area, wings))
    problem.model.connect("s.c", "w.wings_0_chord")
    problem.setup()
    with pytest.raises(RuntimeError, match=r"w\.wings_0_chord.*incompatible"):
        problem.final_setup()
