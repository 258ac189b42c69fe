"""What a gradient check found, as data and as a table."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Column, Table
from rich.text import Text

from chainrule._tables import Html, html_table


def _as_html(text: str) -> str:
    """Text whose names stand between backquotes."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


@dataclass(frozen=True)
class Mismatch:
    """One entry of a derivative that is not what it should be.

    Attributes:
        input_path: where the input element lies.
        output_path: where the output element lies.
        input_index: which element of the input, as a tuple.
        output_index: which element of the output.
        found: the endpoint's value.
        expected: the reference's value.
    """

    input_path: str
    output_path: str
    input_index: tuple[int, ...]
    output_index: tuple[int, ...]
    found: float
    expected: float

    @property
    def error(self) -> float:
        """The absolute difference."""
        return abs(self.found - self.expected)

    def __str__(self) -> str:
        return (
            f"d {self.output_path}{list(self.output_index)} / d {self.input_path}"
            f"{list(self.input_index)}: {self.found:.6g}, expected {self.expected:.6g}"
        )


Pairs = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Check:
    """One test of one endpoint.

    Attributes:
        endpoint: what was tested.
        test: which property: "pointwise", "taylor", "adjoint", "curvature" or "shapes".
        passed: whether it holds.
        count: how many values were compared.
        summary: one line for people.
        mismatches: entries that are wrong, worst first.
        error: the exception that an endpoint raised, if it did.
        entries: pairs of what was found and expected, of a pointwise test.
        remainders: pairs of a step and what a linear step leaves there, of a Taylor test.
    """

    endpoint: str
    test: str
    passed: bool
    count: int
    summary: str
    mismatches: tuple[Mismatch, ...] = ()
    error: BaseException | None = None
    entries: Pairs = field(default=(), repr=False)
    remainders: Pairs = field(default=(), repr=False)

    @classmethod
    def raised(cls, endpoint: str, test: str, error: BaseException) -> Check:
        """The check that failed because an endpoint raised."""
        summary = f"raised {type(error).__name__}: {error}"
        return cls(endpoint, test, False, 0, summary, error=error)


@dataclass(frozen=True)
class LeftOut:
    """A test that was not made.

    Attributes:
        endpoint: what it is about.
        test: which property.
        reason: what it would have cost.
    """

    endpoint: str
    test: str
    reason: str


@dataclass(frozen=True, repr=False)
class GradientReport:
    """Everything that `check_gradients` found. It prints as a verdict and a table, also in a notebook.

    Attributes:
        checks: what was tested.
        left_out: what was not, because it would have taken more evaluations than `max_evals`.
    """

    checks: tuple[Check, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def verdict(self) -> str:
        """One line: how many endpoints failed, and which."""
        tested = {check.endpoint for check in self.checks if check.test != "adjoint"}
        failed = [
            name for name in dict.fromkeys(c.endpoint for c in self.failures) if name in tested
        ]
        if failed:
            return f"{len(failed)} of {len(tested)} endpoints FAILED: {', '.join(failed)}"
        if self.failures:
            return "FAILED: the endpoints contradict each other"
        return "1 endpoint passed" if len(tested) == 1 else f"all {len(tested)} endpoints passed"

    def to_dict(self, max_failures: int = 10) -> dict[str, Any]:
        """JSON-ready facts, with at most `max_failures` entries per check."""
        return {
            "passed": self.passed,
            "checks": [
                {
                    "endpoint": check.endpoint,
                    "test": check.test,
                    "passed": check.passed,
                    "count": check.count,
                    "summary": check.summary,
                    "mismatches": [str(m) for m in check.mismatches[:max_failures]],
                    "entries": _some(check.entries),
                    "remainders": _some(check.remainders),
                }
                for check in self.checks
            ],
            "left_out": [asdict(left_out) for left_out in self.left_out],
        }

    def table(self, max_failures: int = 10) -> Group:
        """The verdict, a table of the checks, and under it the worst entries of those that failed."""
        style = "bold green" if self.passed else "bold red"
        table = Table(
            Column("endpoint", no_wrap=True), "test", "result", "what was found", box=SIMPLE_HEAD
        )
        for check in self.checks:
            result = "[green]passed[/]" if check.passed else "[red]FAILED[/]"
            table.add_row(check.endpoint, check.test, result, _escape(check.summary))
        for left_out in self.left_out:
            reason = _escape(left_out.reason)
            table.add_row(left_out.endpoint, left_out.test, "[yellow]left out[/]", reason)
        verdict = Text(f"check-gradients: {self.verdict}", style=style)
        return Group(verdict, table, *self._entries(max_failures))

    def _entries(self, max_failures: int) -> Iterator[Text]:
        """The wrong entries, under the check that found them."""
        for check in self.checks:
            if not check.mismatches:
                continue
            lines = [f"  {mismatch}" for mismatch in check.mismatches[:max_failures]]
            hidden = len(check.mismatches) - max_failures
            if hidden > 0:
                lines.append(f"  … and {hidden} more")
            yield Text("\n".join([f"{check.endpoint}, {check.test}:", *lines]))

    def __str__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, width=100, color_system=None, force_jupyter=False)
        console.print(self.table())
        return text.getvalue().rstrip()

    def __repr__(self) -> str:
        return f"<GradientReport: {self.verdict}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = [
            (
                Html(f"<code>{escape(check.endpoint)}</code>"),
                check.test,
                "✓ passed" if check.passed else Html("<strong>✗ FAILED</strong>"),
                Html("<br>".join(map(_as_html, [check.summary, *map(str, check.mismatches[:10])]))),
            )
            for check in self.checks
        ]
        rows += [
            (Html(f"<code>{escape(each.endpoint)}</code>"), each.test, "left out", each.reason)
            for each in self.left_out
        ]
        verdict = f"{'✓' if self.passed else '✗'} {escape(self.verdict)}"
        table = html_table(rows, head=("endpoint", "test", "result", "what was found"))
        return f"<p><strong>{verdict}</strong></p>{table}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()


_MOST_PAIRS = 400


def _some(pairs: Pairs) -> list[list[float]]:
    """Finite pairs as JSON has them, spread over all where they are many."""
    finite = [list(pair) for pair in pairs if all(map(math.isfinite, pair))]
    return finite[:: -(-len(finite) // _MOST_PAIRS) or 1]


def _escape(text: str) -> str:
    # Paths such as `a.[0]` look like rich markup.
    from rich.markup import escape

    return escape(text)
