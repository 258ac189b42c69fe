"""Jacobians of pipelines: right under every transformation, and with the products that the plan says."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule
from chainrule.elimination import (
    Plan,
    explain_jacobian,
    jacobian,
    plan_jacobian,
    value_and_jacobian,
)


def point(n):
    return jnp.linspace(0.1, 0.9, n)


TABLE = [
    ((3, 5, 5), 6),
    ((8, 2, 8), 4),
    ((6, 6, 1, 6, 6), 4),
    ((2, 9, 9, 3), 6),
    ((9, 3, 9, 2, 9), 8),
    ((9, 1, 5, 8, 2, 8), 5),
]


@pytest.mark.parametrize(("sizes", "products"), TABLE)
def test_chains_of_the_specification(counted, sizes, products):
    f, x = counted.chain(*sizes), point(sizes[0])
    expected = jax.jacfwd(f)(x)
    plan = plan_jacobian(f)(x)
    assert plan.products == products
    counted.asked.clear()
    value, found = plan.execute(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(value, f(x))
    counted.asked.subtract({(f"c{k}", "apply"): 1 for k in range(len(sizes) - 1)})
    counted.check(plan)


def fork_and_join(counted):
    a = counted.component("a", 4, 3)
    b = counted.component("b", 3, 5)
    c = counted.component("c", 3, 2)
    d = counted.component("d", 7, 2)

    def f(x):
        shared = a(jnp.exp(x))
        return d(jnp.concatenate([b(shared), 2 * c(shared)])) * x[:2]

    return f, point(4)


def skip(counted):
    a, b = counted.component("a", 5, 2), counted.component("b", 2, 5)

    def f(x):
        return jnp.tanh(b(a(x)) + x) * x[0]

    return f, point(5)


def bottleneck_in_jax(counted):
    a, b = counted.component("a", 6, 6), counted.component("b", 6, 6)

    def f(x):
        return b(jnp.sum(a(x) ** 2) * jnp.arange(1.0, 7.0))

    return f, point(6)


def same_call_twice(counted):
    a, b = counted.component("a", 4, 2), counted.component("b", 2, 4)

    def f(x):
        return b(a(jnp.sin(x))) + x * jnp.sum(a(jnp.sin(x)))

    return f, point(4)


def same_component_twice(counted):
    a = counted.component("a", 3, 3)

    def f(x):
        return a(a(x)) + a(x)

    return f, point(3)


def part_of_the_input(counted):
    a, b = counted.component("a", 2, 5), counted.component("b", 3, 1)

    def f(x):
        return {"a": a(x[:2]), "b": b(x[-3:]), "none": jnp.zeros(2), "x": x}

    return f, point(8)


def unrolled_loop(counted):
    a = counted.component("a", 2, 2)

    def f(x):
        return jax.lax.fori_loop(0, 3, lambda _, each: a(each), x)

    return f, point(2)


PIPELINES = [
    fork_and_join,
    skip,
    bottleneck_in_jax,
    same_call_twice,
    part_of_the_input,
    unrolled_loop,
]


@pytest.mark.parametrize("pipeline", [*PIPELINES, same_component_twice])
def test_graphs(counted, pipeline):
    f, x = pipeline(counted)
    expected = jax.jacfwd(f)(x)
    plan = plan_jacobian(f)(x)
    assert plan.gap == 0
    assert plan.price <= min(price for _, price in plan.alternatives.values())
    counted.asked.clear()
    found = jacobian(f)(x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, expected)
    assert counted.products == plan.products
    if pipeline not in (unrolled_loop, same_component_twice):
        counted.check(plan)
    if pipeline in (fork_and_join, part_of_the_input):
        counted.asked.clear()
        compiled = jax.jit(jacobian(f))(x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), compiled, expected)
        assert counted.products <= plan.products


def test_a_call_that_is_made_twice_is_asked_once(counted):
    a = counted.component("a", 2, 4)
    jacobian(lambda x: a(x) * a(x))(point(2))
    assert counted.asked == {("a", "apply"): 1, ("a", "jvp"): 2}


def test_vmap(counted):
    f, _ = fork_and_join(counted)
    xs = jnp.stack([point(4), 2 * point(4), -point(4)])
    expected = jax.vmap(jax.jacfwd(f))(xs)
    products = plan_jacobian(f)(xs[0]).products
    counted.asked.clear()
    np.testing.assert_allclose(jax.vmap(jacobian(f))(xs), expected, rtol=1e-10)
    assert counted.products == 3 * products
    np.testing.assert_allclose(jax.jit(jax.vmap(jacobian(f)))(xs), expected, rtol=1e-10)


def test_trees_argnums_and_auxiliary_results(counted):
    a, b = counted.component("a", 3, 2), counted.component("b", 2, 3)

    def f(first, scale, second):
        inner = a(first["x"] * scale)
        return {"y": b(inner) + second, "z": inner[0]}, {"inner": inner}

    args = {"x": point(3)}, 1.5, jnp.ones(3)
    expected, aux = jax.jacrev(f, argnums=(0, 2), has_aux=True)(*args)
    counted.asked.clear()
    (value, found_aux), found = value_and_jacobian(f, argnums=(0, 2), has_aux=True)(*args)
    assert counted.products == 4
    jax.tree.map(np.testing.assert_allclose, found, expected)
    jax.tree.map(np.testing.assert_allclose, (value, found_aux), (f(*args)[0], aux))
    assert jax.tree.structure(found) == jax.tree.structure(expected)


def test_sparse_results_keep_their_structure(counted):
    a = counted.component("a", 2, 2)

    def f(x):
        return jnp.concatenate([a(x[:2]), x[2:] ** 2])

    counted.asked.clear()
    found = jacobian(f, sparse=True)(point(50))
    assert counted.asked == {("a", "apply"): 1, ("a", "jvp"): 2}
    np.testing.assert_allclose(found.todense(), jax.jacfwd(f)(point(50)))
    assert found.nse < 100


def test_what_is_not_differentiated_is_not_asked(counted):
    a, b = counted.component("a", 3, 3), counted.component("b", 3, 2)

    def f(x, fixed):
        return b(x + a(fixed)) + jax.lax.stop_gradient(b(a(x)))

    found = jacobian(f)(point(3), jnp.ones(3))
    np.testing.assert_allclose(found, jax.jacfwd(f)(point(3), jnp.ones(3)))
    counted.asked.clear()
    jacobian(f)(point(3), jnp.ones(3))
    assert counted.products == 2
    assert counted.asked["b", "vjp"] == 2


def test_a_long_loop_is_one_site(counted):
    a, b = counted.component("a", 3, 3), counted.component("b", 3, 1)

    def f(x):
        steps, _ = jax.lax.scan(lambda carry, _: (a(carry), carry), x, length=70)
        return b(steps)

    x = point(3)
    plan = plan_jacobian(f)(x)
    assert [request.way for request in plan.requests] == ["rows", "rows"]
    assert plan.price == 71 < plan.alternatives["jacfwd"][1]
    counted.asked.clear()
    found = jacobian(f)(x)
    assert counted.asked == {
        ("a", "apply"): 70,
        ("b", "apply"): 1,
        ("a", "vjp"): 70,
        ("b", "vjp"): 1,
    }
    np.testing.assert_allclose(found, jax.jacrev(f)(x), rtol=1e-10)


def test_a_branch_is_one_site(counted):
    a, b = counted.component("a", 3, 3), counted.component("b", 3, 1)

    def f(x):
        return b(jax.lax.cond(x[0] > 0, a, lambda y: 2 * y, x))

    for x in (point(3), -point(3)):
        np.testing.assert_allclose(jacobian(f)(x), jax.jacrev(f)(x), rtol=1e-10)
        np.testing.assert_allclose(jax.jit(jacobian(f))(x), jax.jacrev(f)(x), rtol=1e-10)


def test_missing_directions_are_avoided(counted):
    a = counted.component("a", 5, 5, vjp=False)
    b = counted.component("b", 5, 1, jvp=False)

    def f(x):
        return b(a(x))

    plan = plan_jacobian(f)(point(5))
    counted.asked.clear()
    found = jacobian(f)(point(5))
    counted.check(plan)
    np.testing.assert_allclose(found, jax.jacfwd(f)(point(5)), rtol=1e-10)
    asked = {(request.site, request.way, request.products) for request in plan.requests}
    assert asked == {("a", "columns", 5), ("b", "rows", 1)}


def test_gradients_of_planned_jacobians(counted):
    """A planned Jacobian is a function of JAX like any other; second derivatives need an `hvp`."""
    a = counted.component("a", 2, 2)
    x = point(2)

    def scaled(scale):
        return jacobian(lambda x: scale * a(x))(x).sum()

    np.testing.assert_allclose(jax.grad(scaled)(2.0), jax.jacfwd(a)(x).sum(), rtol=1e-10)
    with pytest.raises(chainrule.ChainruleError, match="hessian_vector_product"):
        jax.grad(lambda x: jacobian(a)(x).sum())(x)


def test_saved_plans(counted, tmp_path):
    f, x = fork_and_join(counted)
    plan = plan_jacobian(f)(x)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json", f)
    assert loaded == plan
    counted.asked.clear()
    _, found = loaded.execute(x)
    assert counted.products == plan.products
    np.testing.assert_allclose(found, jacobian(f)(x))
    assert str(loaded) == str(plan)
    assert "jacfwd" in str(plan)
    assert "<svg" in plan._repr_html_()
    assert f">{plan.requests[0].asked}</td>" in plan._repr_html_()
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(chainrule.InputError, match="bad_plan"):
        Plan.load(tmp_path / "other.json", f)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["requests"].pop(),
        lambda plan: plan["requests"].append(plan["requests"][0]),
        lambda plan: plan["requests"].reverse(),
        lambda plan: plan["requests"][0].update(cut=[]),
        lambda plan: plan["requests"][0].update(cut=[99]),
        lambda plan: plan["requests"][0].update(number=9),
        lambda plan: plan["requests"][0].update(way="sideways"),
        lambda plan: plan["requests"][0].update(way="jacobian"),
        lambda plan: plan.update(workers=0),
    ],
)
def test_a_plan_that_was_changed_is_refused(counted, tmp_path, change):
    """Of 6-1-6-2: a Jacobian without one of its sites would be wrong without an error."""
    f, x = counted.chain(6, 1, 6, 2), point(6)
    path = tmp_path / "plan.json"
    plan_jacobian(f)(x).save(path)
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(chainrule.InputError, match="bad_plan"):
        Plan.load(path, f).execute(x)


def test_plans_for_other_arguments_are_refused(counted):
    f, x = fork_and_join(counted)
    a = counted.component("a", 4, 2)
    plan = plan_jacobian(f)(jax.ShapeDtypeStruct(x.shape, x.dtype))
    with pytest.raises(chainrule.InputError, match=r"inputs f64\[4\].*f32\[4\].*other_plan"):
        plan.execute(x.astype("float32"))
    with pytest.raises(chainrule.InputError, match=r"inputs f64\[4\].*f64\[9\].*other_plan"):
        plan.execute(jnp.ones(9))  # not what a component says of a shape that it does not take
    other = Plan(**{**plan.__dict__, "function": lambda x: a(x) * x[:2]})
    with pytest.raises(chainrule.InputError, match="another pipeline"):
        other.execute(x)


def test_functions_without_sites_have_no_plan():
    with pytest.raises(chainrule.ChainruleError, match="no component"):
        plan_jacobian(jnp.sin)(1.0)


def test_components_that_do_not_depend_on_what_is_differentiated_have_no_plan(counted):
    a = counted.component("a", 2, 2)
    f = plan_jacobian(lambda x, y: a(x) * y, argnums=1)
    with pytest.raises(chainrule.ChainruleError, match="do not depend on what is differentiated"):
        f(point(2), 2.0)


def test_a_component_without_derivatives_is_named(counted):
    a = counted.component("hidden", 2, 2, jvp=False, vjp=False)
    for function in (plan_jacobian(a), jacobian(a), jax.jit(jacobian(a))):
        with pytest.raises(chainrule.ChainruleError, match="hidden cannot answer"):
            function(point(2))


def test_explanations_show_the_plan(counted):
    f, x = skip(counted)
    counted.asked.clear()
    found = explain_jacobian(f, x)
    assert not counted.asked
    assert found.chosen == "planned"
    assert found.plan.products == 4
    assert {"planned", "jacrev", "jacfwd"} <= {candidate.method for candidate in found.candidates}
    assert "4 products" in str(found)
    assert "<svg" in found._repr_html_()
    assert "<p>4 products in " in found._repr_html_()
    assert explain_jacobian(jnp.sin, x).plan is None
    with pytest.raises(chainrule.ChainruleError, match="calls no component"):
        jacobian(jnp.sin, method="planned")(x)
    np.testing.assert_allclose(jacobian(f, method="planned")(x), jax.jacfwd(f)(x))


def test_zero_columns_and_rows_are_not_asked_for(counted):
    """Boundary values are constants, and only some results are read: 3 of 5 inputs, 2 of 5 outputs."""
    a, b = counted.component("a", 5, 5), counted.component("b", 5, 5)

    def columns(x):
        return a(x.at[jnp.array([0, 4])].set(1.0))

    def rows(x):
        return b(x)[jnp.array([3, 1])]

    for function, products in ((columns, 3), (rows, 2)):
        plan = plan_jacobian(function)(point(5))
        counted.asked.clear()
        found = jacobian(function)(point(5))
        assert counted.products == plan.products == products
        np.testing.assert_allclose(found, jax.jacfwd(function)(point(5)), rtol=1e-12)


def test_zeros_pass_through_what_jax_computes(counted):
    """Where two arrays with the same boundary meet, the boundary stays; and back from what is read."""
    a, b, c = (counted.component(name, 5, 5) for name in "abc")

    def inner(x):
        return x.at[0].set(1.0)

    def met(x):
        return c(jnp.tanh(inner(x["a"])) * inner(x["b"]))

    def between(x):
        return c(inner(a(x["a"])) + inner(b(x["b"])))

    def read(x):
        y = a(x["a"])
        return jnp.sin(y)[:3], jnp.cos(y)[1:3]

    def nothing(x):
        return {"a": a(inner(x["a"])[:1].repeat(5)), "b": b(x["b"][:2].repeat(3)[:5])}

    x = {"a": point(5), "b": 2 * point(5)}
    for function, products in ((met, 4), (between, 12), (read, 3), (nothing, 2)):
        expected = jax.jacfwd(function)(x)
        plan = plan_jacobian(function)(x)
        counted.asked.clear()
        found = jacobian(function)(x)
        assert counted.products == plan.products == products
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)
        _, found = plan.execute(x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)
