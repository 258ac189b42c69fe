"""The five charts at the top of docs/benchmarks.md, from the rows of a run.

A chart is an SVG file that needs nothing else. Bars of one claim share a scale that begins at zero, so that
their lengths compare; bars of different claims do not. Text takes the colour of the page it stands in, or
follows the system's theme when the file is opened alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from benchmarks._harness import Row, is_peer, quantity

_CHARTS = {
    "jax": (
        "Components inside JAX",
        {
            "Value and gradient, 1 number": "value_and_grad of it, n = 1",
            "100 gradient steps through 3 components": "three components, 100 gradient steps, n = 100",
            "NumPy component under jit, 10⁵ numbers": (
                "no-op NumPy component under jit, in process, n = 100000"
            ),
            "Served component under jit, 10⁶ numbers": "served on this host, under jit, n = 1e+06",
        },
    ),
    "calls": (
        "Calls of a served component",
        {
            "A call that does nothing": "no-op apply over HTTP, --workers 1",
            "8 MB there and back, HTTP": "8 MB there and back over HTTP",
            "8 MB there and back, same host": "8 MB there and back, shared memory",
        },
    ),
    "jacobians": (
        "Jacobians",
        {
            "Roe flux, 10⁴ points": "RoeFlux_1d, batch 10000: native kernel",
            "Robot arm, 10⁴ points": "RobotArm_6DOF, batch 10000: native kernel",
            "Sparse five-point residual, n = 99 856": "five-point residual, n = 99856: bands",
            "Three served components, 2 ms per product": (
                "Jacobian over three served components, 40-40-3-40, 2 ms per product"
            ),
        },
    ),
    "training": (
        "Training and looking inside",
        {
            "A jitted step, 100 parameters": "jitted step, 100 parameters",
            "A jitted step, 1000 parameters": "jitted step, 1000 parameters",
            "Predictive coding, digits, 5 layers": (
                "predictive coding, digits in 5 layers, batch 80, 8 inference steps"
            ),
            "Intermediates of a gradient, width 256": "save_intermediates(grad(f)), width 256",
        },
    ),
    "start": (
        "Start and validation",
        {
            "Import": "import chainrule",
            "chainrule apply, cold": "chainrule apply, NumPy component, cold",
            "chainrule --help": "chainrule --help",
            "Validate one f64[100, 3]": "validate one correct f64[100,3]",
        },
    ),
}

_US, _PEER, _FLOOR = "#5c6bc0", "#d9730d", "#8a94a6"
_WIDTH, _BAR, _LINE = 360, 104, 18


def charts(rows: Sequence[Row]) -> dict[str, str]:
    """Name → SVG, for every chart of which something was measured."""
    found = {}
    for name, (title, claims) in _CHARTS.items():
        groups = {
            label: measured
            for label, claim in claims.items()
            if (measured := [row for row in rows if row.claim == claim])
        }
        if groups:
            found[name] = _svg(title, groups)
    return found


def write(rows: Sequence[Row], page: Path) -> str:
    """Write the charts to the page's assets; the markdown that shows them."""
    folder = page.parent / "assets" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    found = charts(rows)
    for name, svg in found.items():
        (folder / f"{name}.svg").write_text(svg)
    shown = "\n".join(f'--8<-- "docs/assets/benchmarks/{name}.svg"' for name in found)
    return (
        "Blue is Chainrule, orange is another package, grey is the floor: the time that the machine, or code "
        "written by hand, needs. Shorter is faster. Bars of one claim share a scale.\n\n"
        f'<div class="charts">\n{shown}\n</div>\n'
    )


def _svg(title: str, groups: dict[str, list[Row]]) -> str:
    parts, y = [], 20
    parts.append(f'<text x="0" y="{y}" font-size="16" font-weight="650">{escape(title)}</text>')
    for label, rows in groups.items():
        y += 28
        parts.append(f'<text x="0" y="{y}" font-weight="600">{escape(label)}</text>')
        contestants = list(_contestants(rows))
        longest = max(value for value, *_ in contestants)
        for value, text, colour in contestants:
            y += _LINE
            length = max(1.0, _BAR * value / longest)
            parts.append(
                f'<rect x="0" y="{y - 10}" width="{length:.1f}" height="11" rx="2" fill="{colour}"/>'
            )
            parts.append(f'<text x="{_BAR + 8}" y="{y}">{escape(text)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 10}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12.5" '
        'fill="currentColor">\n'
        "<style>svg:root { color: #1f2333; background: #fff; } @media (prefers-color-scheme: dark) "
        "{ svg:root { color: #e6e9f5; background: #1e2129; } }</style>\n"
        f"{body}\n</svg>\n"
    )


def _contestants(rows: Sequence[Row]) -> Iterator[tuple[float, str, str]]:
    """Figure, text and colour of us, the peers and the floors, each once."""
    first = rows[0]
    yield first.us, f"{quantity(first.us, first.unit)}  Chainrule", _US
    others = {row.against: row for row in rows}.values()
    for row in sorted(others, key=is_peer, reverse=True):
        colour = _PEER if is_peer(row) else _FLOOR
        yield row.reference, f"{quantity(row.reference, row.unit)}  {row.against}", colour
