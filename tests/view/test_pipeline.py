"""`view.pipeline`: which parts there are, what flows between them, and that they are the function."""

import dataclasses
import io
import xml.etree.ElementTree as ElementTree
from functools import partial
from html import unescape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.view.pages import data_of

import chainrule
from chainrule import view
from chainrule._jaxpr import evaluate, trace
from chainrule.runtime import Array, Differentiable, Float32
from chainrule.view._division import divide

sine = chainrule.from_callable(
    np.sin, vjp=lambda x, u: (np.cos(x[0]) * u,), abstract=lambda x: x
)  # fmt: skip
square = chainrule.from_callable(
    np.square, vjp=lambda x, u: (2 * x[0] * u,), abstract=lambda x: x
)  # fmt: skip
X = jnp.array([0.1, 0.2, 0.3])


def loss(x, scale):
    with jax.named_scope("prepare"):
        y = jax.nn.relu(x) * scale["a"] + jnp.linalg.norm(x)
    z = sine(y)
    with jax.named_scope("cost"):
        return jnp.sum(z**2) + jnp.zeros(())


def names(picture):
    return [(part.kind, part.name, part.detail) for part in picture.parts]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_parts_and_links(wrap):
    picture = view.pipeline(wrap(loss), X, {"a": 2.0, "unused": 1.0})
    assert names(picture) == [
        ("jax", "prepare", "JAX"),
        ("component", "sin", "apply"),
        ("jax", "cost", "JAX"),
    ]
    assert [(link.source, link.target, str(link)) for link in picture.links] == [
        ("x", 0, "f32[3]"),
        ("scale", 0, "f32[]"),
        (0, 1, "f32[3]"),
        (1, 2, "f32[3]"),
        (2, "result", "f32[]"),
    ]
    assert picture.arguments == ("x", "scale")
    component = picture.parts[1]
    assert (component.bytes_in, component.bytes_out, component.operations) == (12, 12, None)
    assert component.cost == "12 B in, 12 B out"
    assert picture.parts[2].operations > 0


def test_shapes_are_enough():
    like = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
    picture = view.pipeline(lambda x: jnp.sum(sine(x)), like)
    assert picture.parts[0].cost == "4 MB in, 4 MB out"


def test_gradients_show_the_backward_pass():
    picture = view.pipeline(jax.grad(loss), X, {"a": 2.0})
    calls = [part.detail for part in picture.parts if part.kind == "component"]
    assert calls == ["apply", "vjp"]
    assert ("jax", "prepare", "JAX, backward") in names(picture)


def test_independent_branches_are_separate_parts():
    def f(x):
        return sine(2 * x) + square(3 * x), jnp.cos(x)

    picture = view.pipeline(f, X)
    kinds = [part.kind for part in picture.parts]
    assert (kinds.count("component"), kinds.count("jax")) == (2, 4)
    (cosine,) = (k for k, part in enumerate(picture.parts) if part.equations == 1
                 and part.program.jaxpr.eqns[0].primitive.name == "cos")  # fmt: skip
    assert ("x", cosine) in {(link.source, link.target) for link in picture.links}


def test_components_in_loops_batches_and_callbacks():
    def looped(x):
        return jax.lax.scan(lambda c, _: (sine(c) + 1, None), x, None, length=3)[0]

    assert names(view.pipeline(looped, X)) == [("component", "sin", "apply in scan")]
    batched = view.pipeline(jax.vmap(chainrule.from_callable(
        np.cumsum, vjp=lambda x, u: (u,), abstract=lambda x: x
    )), jnp.ones((4, 3)))  # fmt: skip
    assert batched.parts[0].name == "cumsum"
    assert batched.parts[0].detail.startswith("apply")
    like = partial(jax.pure_callback, np.sin, X)
    assert view.pipeline(like, X).parts[0].detail == "pure_callback"


def test_components_and_inlined_components():
    vector = Differentiable[Array[("n",), Float32]]

    def drag(speed: vector) -> vector:
        return 0.5 * speed**2

    def call(component, x):
        return chainrule.apply_component(component, {"speed": x})["result"]

    plain = chainrule.component(drag)
    assert ("component", "drag", "apply") in names(view.pipeline(partial(call, plain), X))
    inlined = chainrule.component(drag, framework="jax")
    assert names(view.pipeline(partial(call, inlined), X)) == [("component", "drag", "inlined JAX")]

    def cost(x):
        with jax.named_scope("mine"):
            return jnp.sum(jnp.sin(call(inlined, x + 1)))

    around = names(view.pipeline(cost, X))
    assert around == [
        ("jax", "mine", "JAX"),
        ("component", "drag", "inlined JAX"),
        ("jax", "mine", "JAX"),
    ]
    backward = names(view.pipeline(jax.jit(jax.grad(cost)), X))
    assert ("component", "drag", "inlined JAX, backward") in backward


def test_a_mark_costs_nothing():
    vector = Differentiable[Array[("n",), Float32]]

    def drag(speed: vector) -> vector:
        return 0.5 * speed**2

    inlined = chainrule.component(drag, framework="jax")
    call = jax.make_jaxpr(lambda x: chainrule.apply_component(inlined, {"speed": x})["result"])
    assert str(call(X)) == str(jax.make_jaxpr(lambda speed: 0.5 * speed**2)(X))


def test_effects_without_inputs_stay():
    def f(x):
        jax.debug.print("hello")
        return sine(x)

    assert len(view.pipeline(f, X).parts) == 2


def test_sows_are_not_parts_and_name_links():
    def f(x):
        return chainrule.sow(square(chainrule.sow(sine(x), "sine")), "square")

    picture = view.pipeline(f, X)
    assert [part.name for part in picture.parts] == ["sin", "square"]
    assert [link.flows[0].name for link in picture.links] == ["", "sine", "square"]
    captured = view.pipeline(chainrule.save_intermediates(f), X)
    assert {link.source for link in captured.links if link.target == "result"} == {0, 1}


def test_measured_parts_have_seconds():
    picture = view.pipeline(jax.grad(loss), X, {"a": 2.0}, measure=True)
    assert all(min(part.seconds.values()) > 0 for part in picture.parts)
    assert [list(part.seconds) for part in picture.parts if part.kind == "component"] == [
        ["apply"],
        ["vjp"],
    ]
    assert all(part.cost.endswith("s") for part in picture.parts)


def test_drawing_and_table(tmp_path):
    picture = view.pipeline(loss, X, {"a": 2.0})
    root = ElementTree.fromstring(picture.save(tmp_path / "p.svg").read_text())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for expected in (
        "x",
        "scale",
        "prepare",
        "sin",
        "apply",
        "cost",
        "result",
        "f32[3]",
        "a f32[]",
    ):
        assert expected in texts
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(picture)
    assert "12 B in, 12 B out" in console.export_text()


def test_names_are_escaped():
    picture = view.pipeline(lambda x: jax.named_scope("<a&b>")(jnp.sin)(x), 1.0)
    ElementTree.fromstring(picture.svg())


def test_functions_of_nothing():
    assert view.pipeline(lambda x: 1.0, X).parts == ()
    assert view.pipeline(lambda x: x, X).links[0].target == "result"
    ElementTree.fromstring(view.pipeline(lambda x: 1.0, X).svg())


@st.composite
def programs(draw):
    """A random straight-line function with scopes, components and constants."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["add", "sin", "component", "constant"]),
                st.integers(0, 100),
                st.integers(0, 100),
                st.sampled_from(["", "a", "b"]),
            ),
            min_size=1,
            max_size=12,
        )
    )

    def function(x, y):
        values = [x, y]
        for kind, i, j, scope in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            with jax.named_scope(scope):
                if kind == "add":
                    values.append(a + b)
                elif kind == "sin":
                    values.append(jax.jit(jnp.sin)(a))
                elif kind == "component":
                    values.append(sine(a))
                else:
                    values.append(jnp.arange(3.0) * 2)
        return values[-1], values[len(values) // 2]

    return function


@given(programs())
@settings(max_examples=30)
def test_the_parts_together_are_the_function(function):
    division = divide(trace(function, X, 2 * X)[0])
    program = division.program
    values = dict(zip(program.jaxpr.invars, (X, 2 * X), strict=True))
    for section in division.sections:
        inner = section.program.jaxpr
        # Every part comes after those it reads, and calls at most one component.
        results = evaluate(section.program, [values[v] for v in inner.invars])
        values.update(zip(inner.outvars, results, strict=True))
        assert len(section.calls) <= 1
    expected = evaluate(program, (X, 2 * X))
    for atom, value in zip(program.jaxpr.outvars, expected, strict=True):
        if atom in values:
            np.testing.assert_allclose(values[atom], value, rtol=1e-6)


def test_a_page_has_the_equations_of_every_jax_part(monkeypatch):
    # In a notebook JAX prints programs in colours, by characters that have no place in a page.
    monkeypatch.setattr("jax._src.pretty_printer.CAN_USE_COLOR", True)

    def f(x):
        with jax.named_scope("a < b"):
            return jnp.sum(jnp.sin(x))

    html = view.pipeline(f, jnp.ones(3)).html()
    _, part, _ = data_of(unescape(html))["nodes"]
    assert part["name"] == "a < b"
    assert " sin " in part["program"]
    assert "\x1b" not in part["program"]


def test_costs_are_in_words():
    (part,) = view.pipeline(lambda x: x + 1, X).parts
    one, many = (dataclasses.replace(part, operations=count) for count in (1.0, 7.0))
    assert (one.cost, many.cost) == ("≈ 1 operation", "≈ 7 operations")
