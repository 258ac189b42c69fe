"""The doors to other tools: nothing that their users or authors hold changes."""

from pathlib import Path

import numpy as np
import pytest

import chainrule.casadi
import chainrule.openmdao
from chainrule import Component
from memory import author

casadi = pytest.importorskip("casadi")
om = pytest.importorskip("openmdao.api")

WAYS = [name for name in author.WAYS if "raise" not in name and name != "keep_and_take_long"]
X, SHIFT = np.arange(1.0, 5.0), np.full(4, 5.0)


@pytest.fixture(scope="module", params=["in process", "own process"])
def component(request):
    make = Component.from_api if request.param == "in process" else Component.from_source
    with make(Path(author.__file__)) as component:
        yield component


def through_casadi(component, example):
    function = chainrule.casadi.function(component, example, name="f")
    x = casadi.MX.sym("x", len(X))
    y = function(x)
    program = casadi.Function("p", [x], [y, casadi.gradient(casadi.sumsqr(y), x), x])

    def run(values):
        given = casadi.DM(values)
        y, gradient, x = (each.full().ravel() for each in program(given))
        np.testing.assert_array_equal(given.full().ravel(), values)
        np.testing.assert_array_equal(x, values)
        function.raise_error()  # CasADi does not keep the function alive; this does
        return y, gradient

    return run


def through_openmdao(component, example, partials="dense"):
    problem = om.Problem(reports=False)
    inner = chainrule.openmdao.component(component, example, partials=partials)
    problem.model.add_subsystem("inner", inner, promotes=["*"])
    squares = om.ExecComp("f = sum(y**2)", y=np.zeros(len(X)))
    problem.model.add_subsystem("squares", squares, promotes=["*"])
    problem.setup()

    def run(values):
        problem.set_val("x", values)
        problem.run_model()
        gradient = problem.compute_totals(of=["f"], wrt=["x"])["f", "x"].ravel()
        np.testing.assert_array_equal(problem.get_val("x"), values)
        return problem.get_val("y"), gradient

    return run


def through_products_of_openmdao(component, example):
    return through_openmdao(component, example, partials="products")


DOORS = (through_casadi, through_openmdao, through_products_of_openmdao)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients(component, door, way):
    example = {"way": way, "x": X.copy(), "shift": SHIFT.copy()}
    run = door(component, example)
    # The example is the user's again: what the user does with it is of no concern to the door.
    for name, was in (("x", X), ("shift", SHIFT)):
        np.testing.assert_array_equal(example[name], was)
        example[name][...] = 77.0
    received = []
    for number in range(3):
        x = X + number
        y, gradient = run(x)
        np.testing.assert_array_equal(x, X + number)
        received.append((np.array(y), 2 * x + SHIFT, gradient, 4 * (2 * x + SHIFT)))
    for y, expected, gradient, expected_gradient in received:
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-14)
    counted = component.apply({"way": "count changes", "x": np.zeros(1), "shift": np.zeros(1)})
    assert counted["changes"] == 0
