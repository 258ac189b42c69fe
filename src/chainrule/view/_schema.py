"""What a component takes and gives, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from pydantic import BaseModel
from rich.markup import escape as escape_markup
from rich.table import Table

from chainrule._errors import InputError
from chainrule.runtime.internal import SIDES, ArrayJsonSchema, Field, fields_html, fields_of


@dataclass(frozen=True)
class SchemaTable:
    """The fields of a schema. A notebook shows it, rich prints it.

    Attributes:
        sides: title → fields, each with path, type, default and description.
    """

    sides: Mapping[str, tuple[Field, ...]]

    def _repr_html_(self) -> str:
        return "".join(
            f"<strong>{escape(title)}</strong>{fields_html(fields)}"
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
        described = subject.model_json_schema(schema_generator=ArrayJsonSchema)
        schemas = {**described.get("$defs", {}), "Apply_InputSchema": described}
        fields = fields_of({"components": {"schemas": schemas}}, "Input")
        return SchemaTable({subject.__name__: tuple(fields)})
    document = getattr(subject, "openapi_schema", None)
    if document is None:
        raise InputError(
            f"Expected a component or a pydantic model; found {type(subject).__name__}.",
            code="no_schema",
        )
    return SchemaTable({f"{side.lower()}s": tuple(fields_of(document, side)) for side in SIDES})
