"""Eliminating single edges: exact, counted, and cheaper than every order of vertices on the lion graph."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.elimination import Order, OrderError, find_order, jacobian, linearization
from chainrule.elimination._search._improve import _Splitting
from chainrule.elimination.internal import count_operations, trace_function

POINT = (0.3, 0.4)


def lion(x, y):
    """Naumann's lion graph: two inputs, two inner vertices, four outputs; p also reaches the first."""
    p = x * y
    q = jnp.sin(p)
    return q * p, jnp.cos(q), jnp.exp(q), jnp.tanh(q)


def graph_of(function, *arguments):
    return trace_function(function, tuple(range(len(arguments))), arguments, {}).graph


def test_edges_beat_every_order_of_vertices():
    graph = graph_of(lion, *POINT)
    vertex_orders = itertools.permutations(graph.required)
    assert min(count_operations(graph, o).multiplications for o in vertex_orders) == 12
    # By hand: q → (q·p) joins p → (q·p) for one product; then p costs 2 · 2 and q 2 · 3.
    assert count_operations(graph, [(2, 3), 1, 2]).multiplications == 11
    assert find_order(lion, *POINT).cost == 12
    assert find_order(lion, *POINT, edges=True).cost == 11


def test_interrupt_keeps_the_edges_split_so_far(monkeypatch):
    walks = iter([_Splitting.walk])

    def walk_once(search):
        if (walk := next(walks, None)) is None:
            raise KeyboardInterrupt
        walk(search)
        return True

    monkeypatch.setattr(_Splitting, "walk", walk_once)
    assert find_order(lion, *POINT, edges=True).cost == 11


def test_every_path_has_its_own_contraction_order():
    """Two heads read q, one of them p too: each is cheapest in another order of its matrices."""
    n, a, b, m = 8, 6, 8, 64
    shapes = ((a, n), (b, a), (m, b), (m, a), (m, b))
    to_p, to_q, first, from_p, second = (np.full(shape, 0.1) for shape in shapes)

    def heads(x):
        p = to_p @ x
        q = to_q @ p
        return first @ q + from_p @ p, second @ q

    x = np.linspace(0.1, 1.0, n)
    graph = graph_of(heads, x)
    vertices = min(
        count_operations(graph, o).multiplications for o in itertools.permutations(graph.required)
    )
    order = find_order(heads, x, edges=True)
    # By hand: q → first head goes back to p, m·b·a; both summands then read p, m·a each; p is joined with
    # q and the first head, n·a·(b + m); q, which only the second head still reads, n·b·m.
    by_hand = m * b * a + 2 * m * a + n * a * (b + m) + n * b * m
    assert order.cost == by_hand < vertices
    found = jacobian(heads, order=order)(x)
    wanted = jax.jacrev(heads)(x)
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-12), found, wanted)


def test_a_narrow_waist_is_reached_from_both_ends():
    widths = [40, 30, 2, 30, 40]
    weights = [np.ones((n, m)) for m, n in itertools.pairwise(widths)]

    def waist(x):
        for weight in weights:
            x = jnp.tanh(weight @ x)
        return x

    # 2 × 40 in reverse, 40 × 2 forward, each with its tanh's, and the product of the two.
    left, right, both = 2 * 30 + 2 * 30 + 2 * 30 * 40, 30 * 2 + 40 * 30 * 2 + 40 * 2, 40 * 2 * 40
    assert find_order(waist, np.ones(40)).cost == left + right + both


def test_orders_with_edges_are_exact_and_travel_as_json():
    order = find_order(lion, *POINT, edges=True)
    assert Order.from_json(order.to_json()) == order
    found = jax.jit(jacobian(lion, (0, 1), order=order))(*POINT)
    wanted = jax.jacrev(lion, (0, 1))(*POINT)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, wanted)
    assert linearization(lion, (0, 1), order=order)(*POINT).counts.multiplications == 11


def arrays(x, w):
    h = jnp.sin(w @ x)
    k = h[1:] * x[0]
    return (jnp.tanh(k) * k).sum(), k, h * h[::-1]


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_edges_first_give_the_same_jacobian(rng):
    """Random pairs, back and front, put at random places before their vertices."""
    arguments = np.array([0.3, -0.2]), np.array([[0.1, 0.5], [1.0, -1.0], [0.2, 0.7]])
    graph = graph_of(arrays, *arguments)
    order = list(graph.required)
    rng.shuffle(order)
    for _ in range(6):
        vertex = rng.choice(graph.required)
        is_output = not graph.outputs.isdisjoint(graph.nodes(vertex))
        lowest = vertex + 1 if is_output else 1 - len(graph.inputs)
        neighbour = rng.choice([n for n in range(lowest, graph.size + 1) if n != vertex])
        order.insert(rng.randint(0, order.index(vertex)), (vertex, neighbour))
    found = jacobian(arrays, (0, 1), order=order)(*arguments)
    wanted = jax.jacrev(arrays, (0, 1))(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, wanted
    )


@pytest.mark.parametrize("edge", [(9, 1), (1, -2), (0, 1)])
def test_edges_that_do_not_exist(edge):
    with pytest.raises(OrderError, match="unknown"):
        jacobian(lion, (0, 1), order=[edge, 1, 2])(*POINT)


def test_an_output_keeps_its_edges_to_inputs():
    def function(x):
        y = jnp.sin(x)
        return y, y * x

    with pytest.raises(OrderError, match="unknown"):
        jacobian(function, order=[(1, 0), 1])(0.3)
    found = jacobian(function, order=[(1, 2), 1])(0.3)
    np.testing.assert_allclose(found, jax.jacrev(function)(0.3), rtol=1e-12)
