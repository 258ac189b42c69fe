"""`/docs`: what a component takes and gives, on one page without scripts."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from chainrule.runtime.internal import SIDES, capabilities_of, fields_html, fields_of
from chainrule.serve._calls import Facts
from chainrule.serve._page import PAGE_HEADERS


def description_route(path: str, facts: Facts) -> Route:
    """The route of a component's description."""
    content = _render(facts)

    async def description(request: Request) -> Response:
        return HTMLResponse(content, headers=PAGE_HEADERS)

    return Route(path, description, methods=["GET"])


def _render(facts: Facts) -> str:
    version = "" if facts.version == "unknown" else facts.version
    sides = "".join(
        f"<h2>{side}s</h2><div class='scroll'>{fields_html(fields_of(facts.openapi, side))}</div>"
        for side in SIDES
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(facts.name)}</title>"
        "<link rel='icon' href='_page/icon.svg' type='image/svg+xml'>"
        "<link rel='stylesheet' href='_page/page.css'></head><body class='document'>"
        f"<h1>{escape(facts.name)} <span class='version'>{escape(version)}</span></h1>"
        f"<p class='lead'>{escape(facts.description)}</p>"
        "<p><a href='./'>Try it</a>. ∂ marks what is differentiable.</p>"
        f"{sides}<h2>Endpoints</h2>{_endpoints(facts)}{_example()}</body></html>"
    )


def _endpoints(facts: Facts) -> str:
    capabilities = capabilities_of(facts.openapi)
    rows = "".join(
        f"<tr><td><code>POST {escape(name)}</code></td>"
        f"<td>{escape(str(capabilities.get(name, '')))}</td></tr>"
        for name in facts.endpoints
    )
    return (
        f"<div class='scroll'><table>{rows}"
        "<tr><td><code>GET health</code></td><td>whether it is up</td></tr>"
        "<tr><td><code>GET <a href='openapi.json'>openapi.json</a></code></td>"
        "<td>all of this, for machines</td></tr></table></div>"
    )


def _example() -> str:
    return (
        "<h2>From Python</h2><pre>from chainrule import Component\n\n"
        'component = Component.from_url("http://…")  # the address of this page, without /docs\n'
        "component.apply({…})</pre>"
    )
