"""Whether JAX can sweep through a program, forwards or backwards."""

from __future__ import annotations

from collections.abc import Iterator

from chainrule._jaxpr import JaxprEqn, is_reference, locate, subprograms
from chainrule.elimination._graph import Graph


def why_no_sweep(graph: Graph, *, reverse: bool) -> str | None:
    """What in a program keeps JAX from pulling back (or pushing forward) through it; `None` if nothing does.

    Only equations between inputs and targets are looked at: a loop over constants is no obstacle. Nor is one
    inside of a `custom_vjp` function, which has a rule of its own. In a graph without partials, which may not
    have been built to the end, all equations are looked at.
    """
    if not reverse:
        for eqn in graph.program.jaxpr.eqns:
            if any(is_reference(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
                where = locate(eqn) or "an unknown line"
                return f"JAX cannot push several tangents into the mutable array at {where}"
    for vertex in graph.partials or range(1, graph.size + 1):
        for eqn in _differentiated(graph.equation(vertex)):
            name = eqn.primitive.name
            where = f" at {locate(eqn) or 'an unknown line'}"
            if not reverse and "custom_vjp" in name:
                return f"the function{where} has a rule for cotangents (`custom_vjp`) and none for tangents"
            if reverse and name == "while":
                return f"JAX cannot pull cotangents back through the `while` loop{where}"
            if reverse and name == "pvary":
                # Inside of `shard_map` JAX adds up, over the devices, what it pulls back to such a value.
                return f"a value is shared by the devices of a mesh{where}"
    return None


def _differentiated(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """An equation and, at any depth, those inside that are differentiated when it is."""
    yield eqn
    if "custom_vjp" in eqn.primitive.name:
        return
    for sub in subprograms(eqn):
        if sub.role not in ("condition", "operator", "combiner"):
            for inner in sub.program.jaxpr.eqns:
                yield from _differentiated(inner)
