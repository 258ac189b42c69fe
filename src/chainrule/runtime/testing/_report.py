"""What a gradient check found, as data and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table


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
    """

    endpoint: str
    test: str
    passed: bool
    count: int
    summary: str
    mismatches: tuple[Mismatch, ...] = ()
    error: BaseException | None = None

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


@dataclass(frozen=True)
class GradientReport:
    """Everything that `check_gradients` found; printing it with rich shows a table.

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
                }
                for check in self.checks
            ],
            "left_out": [asdict(left_out) for left_out in self.left_out],
        }

    def table(self, max_failures: int = 10) -> Table:
        """A table with the worst entries under each failed check."""
        table = Table(
            Column("endpoint", no_wrap=True), "test", "result", "values", "what was found"
        )
        for check in self.checks:
            result = "[green]passed[/]" if check.passed else "[red]FAILED[/]"
            lines = [check.summary, *map(str, check.mismatches[:max_failures])]
            hidden = len(check.mismatches) - max_failures
            if hidden > 0:
                lines.append(f"… and {hidden} more")
            table.add_row(
                check.endpoint, check.test, result, str(check.count), _escape("\n".join(lines))
            )
        for left_out in self.left_out:
            table.add_row(
                left_out.endpoint,
                left_out.test,
                "[yellow]left out[/]",
                "0",
                _escape(left_out.reason),
            )
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()


def _escape(text: str) -> str:
    # Paths such as `a.[0]` look like rich markup.
    from rich.markup import escape

    return escape(text)
