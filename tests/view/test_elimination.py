"""`view.elimination`: the steps are the chain rule, the costs those of the elimination."""

import re
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.view.pages import data_of

from chainrule import view
from chainrule.elimination import OrderError, find_order, linearization
from chainrule.elimination.examples import simple
from chainrule.errors import InputError


def replay(picture, partials):
    """Carry out the products as they are written, on numbers."""
    entries = dict(partials)
    for step in picture.steps:
        for p in step.products:
            product = entries[p.via, p.reader] * entries[p.operand, p.via]
            edge = p.operand, p.reader
            assert p.is_added == (edge in entries)
            entries[edge] = entries.get(edge, 0.0) + product
        entries = {edge: entries[edge] for edge in step.edges}
    return entries


@pytest.mark.parametrize(("order", "costs"), [("reverse", [2, 4]), ("forward", [4, 4])])
def test_products_give_the_jacobian(order, costs):
    """z = xy, w = sin z, (w + z, log w): the example of the explanation, by hand."""
    x, y = 0.3, 0.4
    picture = view.elimination(simple, order, x, y)
    z = x * y
    partials = {
        ("x", "1"): y, ("y", "1"): x, ("1", "2"): np.cos(z), ("2", "3"): 1.0, ("1", "3"): 1.0,
        ("2", "4"): 1 / np.sin(z),
    }  # fmt: skip
    assert set(picture.edges) == set(partials)
    assert [step.multiplications for step in picture.steps] == costs
    found = replay(picture, partials)
    expected = jax.jacrev(simple, (0, 1))(x, y)
    for row, vertex in zip(expected, "34", strict=True):
        for value, name in zip(row, "xy", strict=True):
            assert found[name, vertex] == pytest.approx(float(value), rel=1e-5)


def test_every_order_has_the_same_layout_and_says_both_costs():
    """Forward elimination takes 8 multiplications, reverse 6; 4 and 5 of them are neither by ±1 nor constant.

    By hand: in reverse order c[3,1] += 1·cos z is the one product by 1; in forward order there are four.
    """
    pictures = {
        order: view.elimination(simple, order, 0.3, 0.4) for order in ("forward", "reverse", "auto")
    }
    assert len({repr(p._layout().places) for p in pictures.values()}) == 1
    assert "8 multiplications, 4 nontrivial" in pictures["auto"].svg()
    assert "(not by ±1, not of two constants); auto minimises these" in pictures["auto"].svg()
    assert "auto minimises" not in pictures["reverse"].svg()
    assert "6 multiplications, 5 nontrivial" in pictures["reverse"].svg()


def test_edges_that_were_not_laid_out_run_around_nodes():
    def chain(x):
        y = jnp.sin(x)
        z = jnp.cos(y)
        return jnp.exp(z), y

    picture = view.elimination(chain, "reverse", 0.5)
    layout = picture._layout()
    filled = {edge for step in picture.steps for edge in step.edges} - set(picture.edges)
    assert filled
    for edge in filled:
        for x, y in layout.route(edge)[1:-1]:
            for node, (nx, ny) in layout.places.items():
                if nx == x:
                    assert abs(y - ny) >= layout.sizes[node][1] / 2


def test_costs_are_those_of_the_linearization():
    def f(a, b, c):
        u = jnp.sin(a * b) / c
        v = jnp.exp(u) * (a - c)
        return u * v, jnp.log(v + b) * u

    picture = view.elimination(f, "markowitz", 2.0, 0.5, 1.0)
    counts = linearization(f, range(3), order="markowitz")(2.0, 0.5, 1.0).counts
    assert sum(step.multiplications for step in picture.steps) == counts.multiplications
    assert picture.counts == counts
    assert {operand for operand, _ in picture.steps[-1].edges} == {"a", "b", "c"}


def test_arrays_have_structures_and_leaves_have_names():
    def f(parameters, x):
        return jnp.sum(jnp.tanh(parameters["w"] * x))

    picture = view.elimination(f, "reverse", {"w": jnp.ones(3)}, jnp.ones(3), argnums=0)
    assert picture.vertices[0].key == "parameters['w']"
    assert [v.operation for v in picture.vertices] == ["", "mul", "tanh", "reduce_sum"]
    assert [v.is_output for v in picture.vertices] == [False, False, False, True]
    assert picture.edges["1", "2"] == "diagonal(1)"


def test_several_results_of_one_equation_are_several_nodes():
    picture = view.elimination(lambda m: sum(jnp.linalg.eigh(m)[0]), "reverse", jnp.eye(2))
    keys = [vertex.key for vertex in picture.vertices]
    assert len(keys) == len(set(keys))


def test_drawings_are_well_formed(tmp_path):
    picture = view.elimination(lambda x: jnp.where(x < 1.0, x, x**2) + x, "auto", 0.5)
    root = ElementTree.fromstring(picture.svg())
    captions = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text") if e.text]
    assert sum(text.startswith("Eliminate ") for text in captions) == len(picture.steps)
    for number in range(len(picture.steps) + 1):
        ElementTree.fromstring(picture.frame(number))
    html = picture.save(tmp_path / "steps.html").read_text()
    assert html.count('type="radio"') == len(picture.steps) + 1 == html.count("<svg")
    assert "<script" not in html
    assert picture._repr_svg_() == picture.svg()
    assert picture._repr_html_() == picture.html()


def blocks(x, y):
    for k in range(8):
        with jax.named_scope(f"block {k // 4}"):
            x, y = jnp.sin(x * y) + x, jnp.cos(y) * x
    return x, y


def test_large_graphs_are_matrices(tmp_path):
    picture = view.elimination(blocks, "reverse", 0.3, 0.4)
    names = [f"{v.key} {v.operation}".strip() for v in picture.vertices]
    assert [v.stage for v in picture.vertices] == ["", "", *["block 0"] * 20, *["block 1"] * 20]
    drawn = ElementTree.fromstring(picture.svg())
    texts = [e.text for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == names
    for number in (0, len(picture.steps)):
        ElementTree.fromstring(picture.frame(number))
    data = data_of(picture.save(tmp_path / "steps.html").read_text())
    assert [node["name"] for node in data["nodes"]] == names
    for number in range(len(picture.steps) + 1):
        wanted = picture.steps[number - 1].edges if number else picture.edges
        found = {
            (names[e["row"]].split()[0], names[e["column"]].split()[0])
            for e in data["edges"]
            if e["born"] <= number < e["died"]
        }
        assert found == set(wanted)
    assert sum(step["cost"] for step in data["steps"]) == picture.counts.multiplications


def test_refusals():
    with pytest.raises(InputError) as caught:
        view.elimination(lambda x: sum(jnp.sin(x * k) for k in range(200)), "reverse", 1.0)
    assert caught.value.code == "graph_too_large"
    with pytest.raises(OrderError):
        view.elimination(simple, [1], 0.3, 0.4)


def test_an_output_that_is_read_keeps_its_row():
    def f(x):
        y = jnp.sin(x)
        return y, y * y

    picture = view.elimination(f, "forward", 0.5)
    assert set(picture.steps[-1].edges) == {("x", "1"), ("x", "2")}


def lion(x, y):
    """Naumann's lion graph, whose cheapest way takes one edge first: 11 multiplications, not 12."""
    p = x * y
    q = jnp.sin(p)
    return q * p, jnp.cos(q), jnp.exp(q), jnp.tanh(q)


@pytest.mark.parametrize(
    ("order", "titles"),
    [
        ([(2, 3), 1, 2], ["2 → 3", "1", "2"]),  # back-elimination: the edge to a reader of 2
        ([(1, 0), 2, 1], ["x → 1", "2", "1"]),  # front-elimination: the edge from the first input
    ],
)
def test_single_edges_are_steps_too(order, titles):
    x, y = 0.3, 0.4
    picture = view.elimination(lion, order, x, y)
    assert [step.title for step in picture.steps] == titles
    p, q = x * y, np.sin(x * y)
    partials = {
        ("x", "1"): y, ("y", "1"): x, ("1", "2"): np.cos(p), ("2", "3"): p, ("1", "3"): q,
        ("2", "4"): -np.sin(q), ("2", "5"): np.exp(q), ("2", "6"): 1 - np.tanh(q) ** 2,
    }  # fmt: skip
    found = replay(picture, partials)
    for row, vertex in zip(jax.jacrev(lion, (0, 1))(x, y), "3456", strict=True):
        for value, name in zip(row, "xy", strict=True):
            assert found[name, vertex] == pytest.approx(float(value), rel=1e-5)
    edge = picture.steps[0].edge
    assert edge in picture.edges
    assert edge not in picture.steps[0].edges
    assert "stroke-dasharray" in picture.frame(1)
    assert f"Eliminate {titles[0]}" in picture.frame(1)


def test_orders_that_were_found_with_edges_are_drawn():
    order = find_order(lion, 0.3, 0.4, edges=True)
    picture = view.elimination(lion, order, 0.3, 0.4)
    assert sum(step.multiplications for step in picture.steps) == order.cost == 11
    assert any(step.edge for step in picture.steps)


def test_headings_fit_beside_a_narrow_graph():
    """At 390 px a heading that is wider than its graph would be cut."""
    steps = view.elimination(lambda x: jnp.sin(x) * jnp.exp(x), "auto", 0.3)
    widths = {
        number: float(re.search(r'width="([\d.]+)"', steps.frame(number))[1])
        for number in range(len(steps.steps) + 1)
    }
    assert max(widths.values()) < 390
    whole = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", steps.frame(0)))
    assert steps.title in whole
