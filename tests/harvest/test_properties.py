"""Random programs with sows at random places, against an eager reference in NumPy.

A program is a list of statements on a vector: arithmetic, sows, and blocks inside `jit`, `checkpoint`,
`vmap`, `scan`, `while_loop` and `cond`. The reference runs the same statements with Python's own loops and
branches and keeps the values as the documentation says they come back.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.harvest import grad_wrt, save_intermediates, sow

OPERATIONS = {
    "sin": (jnp.sin, np.sin),
    "tanh": (jnp.tanh, np.tanh),
    "affine": (lambda x: 0.7 * x + 0.3, lambda x: 0.7 * x + 0.3),
    "shrink": (lambda x: x / (1 + x * x), lambda x: x / (1 + x * x)),
}
LENGTH = 2
LIMIT = 1.5


@dataclass(frozen=True)
class Statement:
    kind: str
    blocks: tuple = ()


@dataclass(frozen=True)
class Value:
    """A reference value: loop axes first (`stacked` of them), and whether it was reached."""

    array: np.ndarray
    stacked: int = 0
    taken: np.ndarray | None = None


def blocks(kinds):
    leaf = st.sampled_from([*OPERATIONS, "sow"]).map(Statement)

    def extend(inner):
        body = st.lists(inner, min_size=1, max_size=3).map(tuple)
        single = st.sampled_from([kind for kind in kinds if kind != "cond"])
        choices = [st.builds(lambda kind, body: Statement(kind, (body,)), single, body)]
        if "cond" in kinds:
            choices.append(st.builds(lambda a, b: Statement("cond", (a, b)), body, body))
        return st.one_of(choices)

    return st.lists(st.recursive(leaf, extend, max_leaves=6), min_size=1, max_size=4).map(tuple)


def has_vmapped_cond(block, in_vmap=False):
    """There JAX runs both branches and selects: no mask exists."""
    return any(
        (statement.kind == "cond" and in_vmap)
        or any(
            has_vmapped_cond(inner, in_vmap or statement.kind == "vmap")
            for inner in statement.blocks
        )
        for statement in block
    )


class Traced:
    """The program in JAX, with or without sows."""

    def __init__(self, tagged):
        self.tagged = tagged

    def run(self, block, x, path=""):
        for position, statement in enumerate(block):
            x = self.step(statement, x, f"{path}/{position}")
        return x

    def step(self, statement, x, path):
        kind = statement.kind
        if kind in OPERATIONS:
            return OPERATIONS[kind][0](x)
        if kind == "sow":
            return sow(x, path) if self.tagged else x
        if kind == "cond":
            yes, no = (
                (lambda x, b=b, n=n: self.run(b, x, f"{path}{n}"))
                for n, b in enumerate(statement.blocks)
            )
            return jax.lax.cond(jnp.sum(x) > 0.5, yes, no, x)

        def body(x):
            return self.run(statement.blocks[0], x, path)

        if kind == "scan":
            return jax.lax.scan(lambda c, _: (body(c), None), x, None, length=LENGTH)[0]
        if kind == "while":
            return jax.lax.while_loop(
                lambda s: (s[0] < LENGTH) & (jnp.sum(s[1]) < LIMIT),
                lambda s: (s[0] + 1, body(s[1])),
                (0, x),
            )[1]
        if kind == "vmap":
            return body(x) if x.ndim == 0 else jax.vmap(body)(x)
        return {"jit": jax.jit, "checkpoint": jax.checkpoint}[kind](body)(x)


def run_reference(block, x, path=""):
    found = {}
    for position, statement in enumerate(block):
        x, more = step_reference(statement, x, f"{path}/{position}")
        found |= more
    return x, found


def step_reference(statement, x, path):
    kind = statement.kind
    if kind in OPERATIONS:
        return OPERATIONS[kind][1](x), {}
    if kind == "sow":
        return x, {path: Value(np.asarray(x))}
    if kind == "cond":
        ran = 0 if np.sum(x) > 0.5 else 1
        found = {}
        for n, block in enumerate(statement.blocks):
            result, more = run_reference(block, x, f"{path}{n}")
            if n == ran:
                chosen = result
            found |= {name: in_branch(value, n == ran) for name, value in more.items()}
        return chosen, found
    block = statement.blocks[0]
    if kind == "scan":
        rounds = []
        for _ in range(LENGTH):
            x, found = run_reference(block, x, path)
            rounds.append(found)
        return x, {name: stack([found[name] for found in rounds]) for name in rounds[0]}
    if kind == "while":
        _, shapes = run_reference(block, x, path)
        last = {name: in_branch(value, False) for name, value in shapes.items()}
        n = 0
        while n < LENGTH and np.sum(x) < LIMIT:
            n += 1
            x, found = run_reference(block, x, path)
            last = {name: latest(last[name], value) for name, value in found.items()}
        return x, last
    if kind == "vmap" and x.ndim:
        results = [run_reference(block, element, path) for element in x]
        names = results[0][1]
        return np.stack([x for x, _ in results]), {
            name: stack([found[name] for _, found in results], axis=names[name].stacked)
            for name in names
        }
    return run_reference(block, x, path)


def in_branch(value, ran):
    taken = (
        np.full(value.array.shape[: value.stacked], True) if value.taken is None else value.taken
    )
    if ran:
        return replace(value, taken=taken)
    return replace(value, array=np.zeros_like(value.array), taken=np.zeros_like(taken))


def latest(before, value):
    """What a while loop keeps: the last one that was reached."""
    value = in_branch(value, True)
    return before if value.stacked == 0 and not value.taken else value


def stack(values, axis=None):
    """Over the iterations of a loop, or over a batch: its axis follows those of the loops."""
    first = values[0]
    return Value(
        np.stack([value.array for value in values], axis or 0),
        first.stacked + (axis is None),
        None if first.taken is None else np.stack([value.taken for value in values], axis or 0),
    )


START = np.array([0.4, 0.9], dtype=np.float64)


@given(blocks(["jit", "checkpoint", "vmap", "scan", "while", "cond"]))
@settings(max_examples=25)
def test_captured_values_equal_the_reference(block):
    if has_vmapped_cond(block):
        return
    tagged, plain = (lambda x, t=t: Traced(t).run(block, x) for t in (True, False))
    result, found = save_intermediates(tagged)(jnp.asarray(START))
    expected, values = run_reference(block, START)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(result, jax.jit(plain)(jnp.asarray(START)))
    assert set(found) == set(values)
    for name, value in values.items():
        np.testing.assert_allclose(found[name]["primal"], value.array, rtol=1e-4, atol=1e-5)
        if value.taken is not None:
            np.testing.assert_array_equal(found[name]["taken"], value.taken)


@given(blocks(["jit", "checkpoint", "vmap", "scan"]))
@settings(max_examples=10)
def test_cotangents_equal_the_gradients_of_perturbations(block):
    def loss(x, tagged=True):
        return jnp.sum(Traced(tagged).run(block, x))

    x = jnp.asarray(START)
    gradient, found = save_intermediates(jax.grad(loss))(x)
    plain = jax.jit(jax.grad(lambda x: loss(x, tagged=False)))(x)
    np.testing.assert_allclose(gradient, plain, rtol=1e-5, atol=1e-6)
    perturbed = grad_wrt(loss, list(found))(x) if found else {}
    for name, entry in found.items():
        np.testing.assert_allclose(entry["cotangent"], perturbed[name], rtol=1e-4, atol=1e-6)
