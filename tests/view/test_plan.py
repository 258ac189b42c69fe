"""Pictures of plans."""

import jax
import jax.numpy as jnp
import numpy as np

from chainrule import from_callable, plan_jacobian, view


def component(name, n, m):
    matrix = np.ones((m, n), np.float32)
    return from_callable(
        lambda x: matrix @ x,
        jvp=lambda primals, tangents: matrix @ tangents[0],
        vjp=lambda primals, cotangent: (matrix.T @ cotangent,),
        abstract=jax.ShapeDtypeStruct((m,), np.float32),
        name=name,
    )


def test_a_plan_is_drawn_as_a_graph(tmp_path):
    """x → a → b, c; both are added, and x is added, too: a fork, a join and a skip."""
    a, b, c = component("a", 6, 2), component("b", 2, 6), component("c", 2, 6)

    def f(x):
        inner = jnp.tanh(a(x))
        return b(inner) + c(inner) + x

    plan = plan_jacobian(f)(jnp.ones(6))
    assert set(plan.links) == {(-1, 0), (0, 1), (0, 2), (1, 3), (2, 3), (-1, 3)}
    picture = view.plan(plan)
    text = picture.svg()
    for label in ("inputs", "f32[6]", "1. 2 VJPs", "2 JVPs", "outputs"):
        assert label in text
    assert text.count("<path") >= len(plan.links)
    assert picture.save(tmp_path / "plan.svg").read_text() == text
