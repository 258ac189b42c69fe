"""The author's own plots of a result, as HTML.

`plot(inputs, outputs)` of a component gets the models of `apply` and returns a figure, or
`{title: figure}`. A figure is anything that makes HTML or a picture of itself:

    str                    HTML as it is
    to_html()              Plotly; the document contains Plotly's scripts
    savefig(file, …)       matplotlib
    export_html(None)      PyVista's plotter, in a file object
    _repr_html_()          what notebooks show

The HTML may contain scripts. It has to be shown where they reach nothing: the page of a server shows it in
a frame without an origin and without a network.
"""

from __future__ import annotations

import base64
import inspect
import io
from collections.abc import Callable, Mapping
from typing import Any

from chainrule._describe import describe_value
from chainrule._errors import ComponentError

Plot = Callable[[Any, Any], Any]


def plot_of(module: Any) -> Plot | None:
    """The function `plot(inputs, outputs)` of a module. Other things may be called `plot`, too."""
    found = getattr(module, "plot", None)
    if not inspect.isfunction(found):
        return None
    return found if list(inspect.signature(found).parameters) == ["inputs", "outputs"] else None


def documents_of(result: Any) -> dict[str, str]:
    """Title → HTML of what the author's function returned.

    Raises:
        ComponentError: it is no figure (`bad_output`).
    """
    figures = result if isinstance(result, Mapping) else {"plot": result}
    return {str(title): _html_of(figure) for title, figure in figures.items()}


def _html_of(figure: Any) -> str:
    if isinstance(figure, str):
        return figure
    if hasattr(figure, "to_html"):
        return _text(figure.to_html())
    if hasattr(figure, "savefig"):
        return _as_picture(figure)
    if hasattr(figure, "export_html"):
        return _text(figure.export_html(None))
    if hasattr(figure, "_repr_html_"):
        return _text(figure._repr_html_())
    raise ComponentError(
        "Expected plot(inputs, outputs) to return HTML, a figure of matplotlib, Plotly or PyVista, or "
        f"{{title: figure}}; found {describe_value(figure)}.",
        code="bad_output",
    )


def _text(document: Any) -> str:
    return document.getvalue() if hasattr(document, "getvalue") else str(document)


def _as_picture(figure: Any) -> str:
    """A figure of matplotlib as SVG in an `img`, in which no script of it runs."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", bbox_inches="tight")
    content = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="" style="display:block;max-width:100%" src="data:image/svg+xml;base64,{content}">'
