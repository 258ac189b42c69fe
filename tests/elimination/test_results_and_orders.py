"""Structured blocks as objects, orders as values, and the errors about both."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import ChainruleError, _progress
from chainrule.elimination import (
    Order,
    OrderError,
    StructuredJacobian,
    _orders,
    find_order,
    jacobian,
    jacve,
    linearization,
)
from chainrule.elimination._search import _portfolio
from chainrule.elimination.examples import roe_flux_1d

V = np.array([0.3, -0.7, 1.2, 0.5, 0.9])
POINT = (0.01, 0.02, 0.02, 0.01, 0.03, 0.03)


def residual(u):
    return (u[2:] - 2 * u[1:-1] + u[:-2]) * 10 + jnp.exp(u[1:-1])


@pytest.fixture
def block():
    return jacobian(residual, sparse=True)(V)


@pytest.fixture
def dense():
    return np.asarray(jax.jacrev(residual)(V))


def test_a_stencil_is_stored_as_its_bands(block):
    assert isinstance(block, StructuredJacobian)
    assert block.nse == 9
    assert [value.size for value in block.values if value is not None] == [3]
    assert "9 of 15 entries" in repr(block)
    assert "offset-diagonal" in repr(block)


def test_conversions(block, dense):
    np.testing.assert_allclose(block.todense(), dense)
    np.testing.assert_allclose(block.to_scipy().toarray(), dense)
    np.testing.assert_allclose(block.to_bcoo().todense(), dense)
    np.testing.assert_allclose(block.T.todense(), dense.T)


def test_products(block, dense):
    np.testing.assert_allclose(block @ V, dense @ V)
    np.testing.assert_allclose(block @ np.outer(V, V), dense @ np.outer(V, V))
    np.testing.assert_allclose((block.T @ block).todense(), dense.T @ dense)
    assert (block.T @ block).nse == 5 + 2 * (4 + 3)


def test_product_with_a_wrong_shape_says_so(block):
    with pytest.raises(ChainruleError, match=r"maps arrays of shape \[5\] to \[3\]"):
        block @ V[:3]


def test_spy_draws_every_entry(block):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = block.spy()
    assert "3 × 5, 9 of 15 entries" in {text.get_text() for text in axes.texts}
    matplotlib.pyplot.close(axes.figure)


def test_zero_blocks():
    zero = jacobian(lambda x, y: x * 2, argnums=1, sparse=True)(V, V)
    assert zero.nse == 0
    np.testing.assert_array_equal(zero.todense(), np.zeros((5, 5)))
    np.testing.assert_array_equal(zero @ V, np.zeros(5))
    assert zero.T.to_scipy().nnz == 0
    assert "zero" in repr(zero)


def test_large_stencils_need_no_square_array():
    n = 100_000
    found = jax.jit(jacobian(residual, sparse=True))(np.linspace(0, 1, n))
    assert found.nse == 3 * (n - 2)
    assert sum(value.size for value in found.values if value is not None) <= 3 * n


def test_orders_that_do_not_fit_list_what_is_wrong():
    def function(x):
        return jnp.sin(jnp.cos(jnp.exp(x)))

    with pytest.raises(OrderError) as caught:
        jacve(function, order=[1, 1, 9])(0.5)
    assert caught.value.code == "bad_order"
    assert caught.value.details == {"missing": [2], "repeated": [1], "unknown": [9]}
    assert "cos at" in str(caught.value)
    with pytest.raises(OrderError, match="no order called"):
        jacve(function, order="sideways")(0.5)


def test_pure_outputs_may_be_in_an_order():
    found = jacve(lambda x: jnp.sin(x) * 2, order=[2, 1])(0.5)
    np.testing.assert_allclose(found[0], 2 * np.cos(0.5))


def test_orders_are_values():
    order = find_order(residual, V, budget_s=0.05)
    assert Order.from_json(order.to_json()) == order
    assert hash(Order.from_json(order.to_json())) == hash(order)
    with pytest.raises(ChainruleError):
        Order.from_json("[1, 2]")
    np.testing.assert_allclose(jacobian(residual, order=order)(V), jax.jacrev(residual)(V))


def test_an_order_found_in_a_batch_job_fits_in_a_notebook(monkeypatch):
    """JAX prints programs in colours on a terminal and in a notebook."""
    order = find_order(residual, V, budget_s=0.05)
    monkeypatch.setattr("jax._src.pretty_printer.CAN_USE_COLOR", True)
    assert "\x1b" in str(jax.make_jaxpr(residual)(V))
    np.testing.assert_allclose(jacobian(residual, order=order)(V), jax.jacrev(residual)(V))


def test_orders_made_by_hand_are_values_too():
    order = Order([1, [2, 3], np.int64(4)], "a" * 32)
    assert order.vertices == (1, (2, 3), 4)
    assert Order.from_json(order.to_json()) == order
    assert len({order, Order((1, (2, 3), 4), "a" * 32)}) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"vertices": [1.5]},
        {"vertices": 3},
        {"vertices": [[1, 2, 3]]},
        {"cost": "cheap"},
        {"bound": [1]},
        {"fingerprint": 3},
        {"objective": None},
        {"beauty": 1},
    ],
)
def test_json_that_is_no_order(fields):
    with pytest.raises(ChainruleError) as caught:
        Order.from_json(json.dumps({"vertices": [1], "fingerprint": "a" * 32} | fields))
    assert caught.value.code == "bad_order"


def test_an_order_may_be_an_array():
    order = np.arange(1, 1 + len(find_order(residual, V, budget_s=0)))
    np.testing.assert_allclose(jacobian(residual, order=order)(V), jax.jacrev(residual)(V))


def test_shapes_are_enough_for_a_search():
    shape = jax.ShapeDtypeStruct(V.shape, V.dtype)
    assert find_order(residual, shape, budget_s=0) == find_order(residual, V, budget_s=0)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"budget_s": float("nan")}, "bad_budget"),
        ({"budget_s": -1}, "bad_budget"),
        ({"budget_s": "1"}, "bad_budget"),
        ({"seed": 1.5}, "bad_seed"),
        ({"seed": None}, "bad_seed"),
    ],
)
def test_searches_that_make_no_sense(settings, code):
    with pytest.raises(ChainruleError) as caught:
        find_order(residual, V, **settings)
    assert caught.value.code == code


def test_an_interrupt_ends_the_search_only(monkeypatch):
    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr(_portfolio._Run, "improve", interrupted)
    # At once, also where edges would be looked at next.
    monkeypatch.setattr(_orders, "split_edges", None)
    assert find_order(roe_flux_1d, *POINT, budget_s=5, edges=True).cost < 400


def test_an_order_refuses_another_program():
    order = find_order(residual, V, budget_s=0.05)
    with pytest.raises(OrderError) as caught:
        jacobian(residual, order=order)(V[:4])
    assert caught.value.code == "order_of_another_program"


def test_search_is_never_worse_than_the_classics():
    def function(x, y):
        for _ in range(4):
            x, y = jnp.sin(x * y), x + y * x
        return x, y, x / y

    order = find_order(function, 0.3, 0.4, budget_s=0.05)
    for name in ("forward", "reverse", "markowitz"):
        found = linearization(function, (0, 1), order=name)(0.3, 0.4)
        assert order.cost <= found.counts.multiplications


@pytest.mark.parametrize("objective", ["nontrivial", "operations", "memory"])
def test_other_objectives_give_valid_orders(objective):
    order = find_order(residual, V, objective=objective, budget_s=0.05)
    np.testing.assert_allclose(jacobian(residual, order=order)(V), jax.jacrev(residual)(V))


def test_unknown_objective():
    with pytest.raises(ChainruleError, match="no objective"):
        find_order(residual, V, objective="beauty")


def test_progress_shows_the_best_cost(capsys, monkeypatch):
    find_order(roe_flux_1d, *POINT, budget_s=0.1)
    assert not capsys.readouterr().err  # no terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(_progress, "PATIENCE_S", 0)
    order = find_order(roe_flux_1d, *POINT, budget_s=0.5)
    shown = re.findall(r"searching.*best (\d+)", capsys.readouterr().err)
    assert order.cost <= int(shown[-1])


def test_wrong_arguments_are_explained():
    with pytest.raises(ChainruleError, match=r"i64\[3\]"):
        jacobian(lambda x: x * 2.0)(np.arange(3))
    with pytest.raises(ChainruleError, match="argument 2"):
        jacobian(jnp.sin, argnums=2)(V)
    with pytest.raises(ChainruleError, match="pair"):
        jacobian(jnp.sin, has_aux=True)(V)


def test_public_surface():
    import chainrule.elimination as package

    assert sorted(package.__all__) == package.__all__
    assert set(package.__all__) == {
        "Candidate", "Explanation", "Linearization", "OperationCounts", "Order", "OrderError",
        "Plan", "PlannedRequest", "StructuredJacobian", "explain_jacobian", "find_order",
        "gauss_newton_product", "hessian", "jacobian", "jacve", "linearization", "plan_jacobian",
        "register_partials", "value_and_jacobian",
    }  # fmt: skip
    assert all(getattr(package, name).__doc__ for name in package.__all__)


def test_arguments_that_cannot_be_differentiated_are_named():
    with pytest.raises(ChainruleError, match=r"\[1\] is a str") as caught:
        find_order(lambda x, mode: x if mode == "fast" else -x, 1.0, "fast")
    assert caught.value.code == "not_differentiable"
    with pytest.raises(ChainruleError, match="more than once") as caught:
        jacobian(jnp.multiply, (0, 1, -2))(1.0, 2.0)
    assert caught.value.code == "bad_argnums"


@pytest.mark.parametrize(
    "settings", [{"sparse": True}, {"strict": True}, {"order": "reverse"}, {"backend": "native"}]
)
def test_what_only_elimination_has_goes_with_no_other_method(settings):
    with pytest.raises(ChainruleError) as caught:
        jacobian(residual, method="jacrev", **settings)
    assert caught.value.code == "method_conflict"
    assert jacobian(jnp.sin, method="jacrev", backend="xla")(0.0) == 1.0  # where it runs anyway


@pytest.mark.parametrize("argnums", ["x", 1.5, (0, None)])
def test_argnums_are_positions(argnums):
    with pytest.raises(ChainruleError, match="position of an argument") as caught:
        jacobian(residual, argnums)(V)
    assert caught.value.code == "bad_argnums"


@pytest.mark.parametrize("order", [None, 3, [1.5], ["sin"], [(1, 2, 3)]])
def test_what_is_no_order(order):
    with pytest.raises(OrderError, match="vertex numbers") as caught:
        jacobian(residual, order=order)(V)
    assert repr(order) in str(caught.value)


@pytest.mark.parametrize(
    "objective", ["multiplications", "nontrivial", "operations", "time", "memory"]
)
def test_a_search_passes_over_what_cancels(objective):
    """`q - q` has no edge at all; `q` and what it is made of still have to be eliminated."""

    def function(x, y):
        q = y / (x * x + 1.0)
        return (q - q) * jnp.sin(x), q * x

    order = find_order(function, 1.3, V, argnums=(0, 1), objective=objective)
    found = jacobian(function, (0, 1), order=order)(1.3, V)
    wanted = jax.jacrev(function, (0, 1))(1.3, V)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, wanted)


def test_jaxs_messages_name_the_users_function():
    def energy(positions, charge):
        return positions * charge if positions[0] > 0 else positions

    with pytest.raises(
        jax.errors.TracerBoolConversionError, match=r"function energy at .*test_"
    ) as caught:
        jacobian(energy, (1, 0), method="elimination")(jnp.ones(2), jnp.float32(2))
    assert "differentiated[1]" in str(caught.value)


@pytest.mark.parametrize("settings", [{}, {"method": "elimination"}, {"sparse": True}])
def test_equations_with_other_constants_have_an_order_of_their_own(settings):
    """Places that do not exist have no edges. The same equations with other places do."""

    def function_with(places):
        def function(x):
            read = jnp.sin(x).at[places].get(mode="fill", fill_value=0.0)
            return jnp.exp(read * x[:2]) * x[1:]

        return function

    for places in ([7, 8], [2, 1], [0, 9], [9, 0]):
        function = function_with(jnp.array(places))
        found = jacobian(function, **settings)(V[:3])
        found = found.todense() if settings.get("sparse") else found
        np.testing.assert_allclose(found, jax.jacrev(function)(V[:3]), rtol=1e-10)
