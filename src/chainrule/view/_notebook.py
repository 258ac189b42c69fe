"""`%load_ext chainrule.view`: what notebooks cannot show by themselves.

Objects show themselves. Schemas are classes, which IPython asks for no repr; it can be told how to show them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from chainrule.view._schema import schema

_METACLASS = type(BaseModel)


def load_ipython_extension(shell: Any) -> None:
    """Show classes of schemas as tables of their fields; called by `%load_ext chainrule.view`.

    Args:
        shell: the shell of IPython.
    """
    _html_formatter(shell).for_type(_METACLASS, _schema_html)


def unload_ipython_extension(shell: Any) -> None:
    """Show them as IPython does; called by `%unload_ext chainrule.view`."""
    _html_formatter(shell).pop(_METACLASS, None)


def _html_formatter(shell: Any) -> Any:
    return shell.display_formatter.formatters["text/html"]


def _schema_html(model: type[BaseModel]) -> str | None:
    """The table of a model; nothing where it has no fields to show, such as `BaseModel` itself."""
    return schema(model)._repr_html_() if model.model_fields else None
