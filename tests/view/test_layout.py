"""The layered layout: nothing overlaps, everything flows to the right."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.view._layout import lay_out


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 9))
    pairs = list(combinations(range(count), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    side = st.floats(4, 80)
    return {k: (draw(side), draw(side)) for k in range(count)}, edges


@given(graphs())
@settings(max_examples=60)
def test_properties(graph):
    sizes, edges = graph
    layout = lay_out(sizes, edges, between=30.0)
    width, height = layout.size
    boxes = {}
    for node, (w, h) in sizes.items():
        x, y = layout.places[node]
        boxes[node] = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        assert boxes[node][0] >= 0
        assert boxes[node][1] >= 0
        assert boxes[node][2] <= width
        assert boxes[node][3] <= height
    for a, b in combinations(boxes.values(), 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    assert set(layout.routes) == set(edges)
    for (a, b), route in layout.routes.items():
        assert route[0][0] == boxes[a][2]
        assert route[-1][0] == boxes[b][0]
        xs = [x for x, _ in route]
        assert xs == sorted(xs)
        assert xs[-1] - xs[0] >= 30.0 - 1e-9
        inner = [box for node, box in boxes.items() if node not in (a, b)]
        for x, y in route[1:-1]:
            assert not any(left < x < right and top < y < low for left, top, right, low in inner)


def test_parallel_chains_do_not_cross():
    """Two chains whose nodes were given crosswise are sorted out."""
    sizes = dict.fromkeys("a b c d e f".split(), (10.0, 10.0))
    edges = [("a", "d"), ("b", "c"), ("c", "e"), ("d", "f")]
    places = lay_out(sizes, edges, between=20.0).places
    upper = [places[n][1] for n in "adf"]
    lower = [places[n][1] for n in "bce"]
    assert len(set(upper)) == len(set(lower)) == 1
    assert upper[0] != lower[0]
