"""graphax on Chainrule: Jacobians by vertex elimination, and the benchmark functions."""

from chainrule.compat.graphax import core, examples
from chainrule.compat.graphax.core import jacve, tree_allclose, vertex_elimination_jaxpr

__all__ = ["core", "examples", "jacve", "tree_allclose", "vertex_elimination_jaxpr"]
