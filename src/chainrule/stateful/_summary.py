"""Looking at a model: a table of its parameters, and its shape as text."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from chainrule._tables import html_table
from chainrule.stateful._nodes import Branch, Node
from chainrule.stateful._values import describe, nbytes
from chainrule.stateful._walk import Structure, named_pairs

_COLUMNS = ("path", "kind", "value", "bytes", "shared with")


@dataclass(frozen=True)
class Row:
    """One parameter: its path, kind, value's type, size, and the other paths that lead to it."""

    path: str
    kind: str
    value: str
    nbytes: int
    aliases: tuple[str, ...]
    frozen: bool

    def cells(self) -> tuple[str, ...]:
        kind = f"{self.kind} (frozen)" if self.frozen else self.kind
        return self.path, kind, self.value, f"{self.nbytes:,}", ", ".join(self.aliases)


@dataclass(frozen=True)
class Summary:
    """A table of parameters that prints as text and shows as HTML in notebooks."""

    rows: tuple[Row, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters, shared ones counted once."""
        return sum(row.nbytes for row in self.rows)

    def _table(self) -> list[tuple[str, ...]]:
        total = (f"{len(self.rows)} parameters", "", "", f"{self.nbytes:,}", "")
        return [_COLUMNS, *(row.cells() for row in self.rows), total]

    def __str__(self) -> str:
        table = self._table()
        widths = [max(len(cells[i]) for cells in table) for i in range(len(_COLUMNS))]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]
        rule = "─" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns, *rows = self._table()
        return html_table(rows, head=columns)


def summary(tree: Any) -> Summary:
    """A table of a model's parameters: path, kind, shape and dtype, bytes, sharing.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, summary
        >>> weight = Param(jnp.ones((2, 3)))
        >>> print(summary({"a": weight, "b": weight}))
        path          kind   value     bytes  shared with
        ─────────────────────────────────────────────────
        a             Param  f32[2,3]  24     b
        ─────────────────────────────────────────────────
        1 parameters                   24
    """
    structure = Structure().visit(tree)
    aliases: dict[str, list[str]] = {}
    for alias, first in structure.aliases.items():
        aliases.setdefault(first, []).append(alias)
    return Summary(
        tuple(
            Row(
                path or "(root)",
                type(param).__name__,
                describe(param.value),
                nbytes(param.value),
                tuple(aliases.get(path, ())),
                param.frozen,
            )
            for path, param in structure.params.items()
        )
    )


def render(node: Node, indent: int = 0, seen: set[int] | None = None) -> str:
    """A module and what it holds, one line per part; a node met again is named only."""
    seen = set() if seen is None else seen
    name = type(node).__name__
    if id(node) in seen:
        return f"{name}(…)"
    seen.add(id(node))
    pad = "  " * (indent + 1)
    lines = []
    for key, value in named_pairs(node):
        if key.startswith("_"):
            continue
        is_branch = isinstance(value, Branch)
        text = render(value, indent + 1, seen) if is_branch else repr(value)
        lines.append(f"{pad}{key}: {text}")
    body = "\n".join(lines)
    return f"{name}(\n{body}\n{'  ' * indent})" if lines else f"{name}()"


def render_html(node: Node) -> str:
    """`render` for notebooks, with the table of parameters folded below."""
    return (
        f"<pre>{html.escape(render(node))}</pre>"
        f"<details><summary>parameters</summary>{summary(node)._repr_html_()}</details>"
    )
