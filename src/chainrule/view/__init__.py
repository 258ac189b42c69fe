"""Pictures of what the other packages compute: SVG for notebooks and pages, tables for the terminal, plots.

    pipeline         the components and JAX parts of a function, with shapes and cost
    gradient_flow    the same, with the values on its links and their cotangents
    spy              where the entries of a Jacobian are
    plan             what the components of a pipeline are asked for its Jacobian
    schema           what a component takes and gives
    elimination      the way from a computational graph to its Jacobian, vertex by vertex
    watch            a run while it runs, and step by step afterwards

Pictures show themselves in a notebook and have `.svg()`, `.html()`, `.plot(ax)` for matplotlib and
`.save(path)`. After `%load_ext chainrule.view`, notebooks show classes of schemas as tables, too.

Modules, in reading order:

    _picture          shapes as data, SVG, and what every picture can do
    _matplotlib       the same shapes on the axes of matplotlib, which is optional
    _layout           places for the nodes of a graph
    _page             pages that need nothing else
    _arrays           arrays for pages, as small copies
    _matrix           large graphs
    _division         a program divided into components and JAX parts; names of what is in it
    _runs             what runs through the parts: values, cotangents, seconds
    _graph            a pipeline's programs and links, as boxes
    _pipeline         the picture of a pipeline: graph or matrix, table, page
    _plan             what the components of a pipeline are asked for
    _elimination      the steps of an elimination
    _spy              the pattern of a Jacobian
    _schema           fields of a component; the notebook extension
    _watch            the record of a run, and a page that follows it
"""

from chainrule.view._elimination import EliminationSteps, Product, Step, Vertex, elimination
from chainrule.view._graph import Flow, Link, Part
from chainrule.view._picture import Picture
from chainrule.view._pipeline import Pipeline, gradient_flow, pipeline
from chainrule.view._plan import PlanPicture, plan
from chainrule.view._schema import (
    SchemaTable,
    load_ipython_extension,
    schema,
    unload_ipython_extension,
)
from chainrule.view._spy import Spy, SpyBlock, spy
from chainrule.view._watch import Watch, WatchFrame, watch

__all__ = [
    "EliminationSteps",
    "Flow",
    "Link",
    "Part",
    "Picture",
    "Pipeline",
    "PlanPicture",
    "Product",
    "SchemaTable",
    "Spy",
    "SpyBlock",
    "Step",
    "Vertex",
    "Watch",
    "WatchFrame",
    "elimination",
    "gradient_flow",
    "load_ipython_extension",
    "pipeline",
    "plan",
    "schema",
    "spy",
    "unload_ipython_extension",
    "watch",
]
