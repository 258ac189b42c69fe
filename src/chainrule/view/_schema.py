"""What a component takes and gives, as a table; and `%load_ext chainrule.view`.

Objects show themselves in a notebook. Schemas are classes, which IPython asks for no repr; the extension
tells it how to show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from pydantic import BaseModel
from rich.markup import escape as escape_markup
from rich.table import Table

from chainrule._errors import InputError
from chainrule.runtime.internal import Document, Field


@dataclass(frozen=True)
class SchemaTable:
    """The fields of a schema. A notebook shows it, rich prints it.

    Attributes:
        sides: title → fields, each with path, type, default and description.
    """

    sides: Mapping[str, tuple[Field, ...]]

    def __repr__(self) -> str:
        sides = (
            f"{title}: {', '.join(f.path for f in fields)}" for title, fields in self.sides.items()
        )
        return f"<SchemaTable {'; '.join(sides)}>"

    def _repr_html_(self) -> str:
        return "".join(
            f"<strong>{escape(title)}</strong>{Field.table(fields)}"
            for title, fields in self.sides.items()
        )

    def __rich__(self) -> Table:
        table = Table("", "path", "type", "∂", "")
        for title, fields in self.sides.items():
            for field in fields:
                mark = "∂" if field.is_differentiable else ""
                cells = (field.path, field.type, mark, field.description)
                table.add_row(title, *map(escape_markup, cells))  # `f64[n]` looks like markup
        return table


def schema(subject: Any) -> SchemaTable:
    """Show the fields of a component's inputs and outputs, or of one model.

    Args:
        subject: a component, here or elsewhere, or a pydantic model with array fields.

    Raises:
        InputError: it is neither.

    Example:
        >>> import chainrule
        >>> from chainrule import view
        >>> @chainrule.component
        ... def double(x: float) -> float:
        ...     return 2 * x
        >>> view.schema(double).sides["inputs"][0].path
        'x'
    """
    if isinstance(subject, type) and issubclass(subject, BaseModel):
        return SchemaTable({subject.__name__: tuple(Document.of_model(subject).fields("inputs"))})
    content = getattr(subject, "openapi_schema", None)
    if content is None:
        raise InputError(
            f"Expected a component or a pydantic model; found {type(subject).__name__}.",
            code="no_schema",
        )
    document = Document(content)
    return SchemaTable(
        {"inputs": tuple(document.fields("inputs")), "outputs": tuple(document.fields("outputs"))}
    )


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
