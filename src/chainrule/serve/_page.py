"""What a browser shows of a component: its page at `/` and its description at `/docs`.

The files of the page know nothing about the component: they ask for what they show with the caller's token,
so they are served without one. The description has no scripts.

The scripts under `_web`, and those that all pages share (`chainrule._web`), become one ES module per page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from chainrule._markdown import markdown
from chainrule._web import join_modules, read_folder, shared_files
from chainrule.runtime.internal import Document, Field
from chainrule.serve._calls import Facts

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

FRAME_HEADERS = {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; "
    "script-src 'unsafe-inline' 'unsafe-eval' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:; worker-src blob:; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Of the frame in which plots of authors are shown. Their scripts run, but without an origin, so they reach
neither the page nor its token, and without a network. The page's policy keeps the frame at this address."""

_MEDIA_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_SCRIPTS = ("page.js", "dashboard.js")
"""The files that pages start with. The others under `_web` are parts of these, and not served alone."""
_PLACE = re.compile(r"(/c/[^/]+)?/")
_ASSET = re.compile(r"(/c/[^/]+)?/_page/([a-z_]+\.(css|js|svg)|frame\.html)")


def is_page(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request asks for the page or a part of it: files that say nothing about a component."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    path = scope["path"]
    if _ASSET.fullmatch(path):
        return True
    accept = dict(scope["headers"]).get(b"accept", b"")
    return b"text/html" in accept and _PLACE.fullmatch(path) is not None


def page_routes() -> list[Route]:
    """The page and its parts, at the root and under every component.

    Any name under `/c/` gets the page: callers without a token must not learn which names there are.
    """

    async def page(request: Request) -> Response:
        if not is_page(request.scope):
            raise HTTPException(404)
        return static_file("index.html")

    async def part(request: Request) -> Response:
        return static_file(request.path_params["name"])

    async def with_slash(request: Request) -> Response:
        # The dot keeps a name such as `https:elsewhere` from being an address.
        return RedirectResponse(f"./{request.path_params['component']}/")

    return [
        Route("/", page, methods=["GET"]),
        Route("/_page/{name}", part, methods=["GET"]),
        Route("/c/{component}", with_slash, methods=["GET"]),
        Route("/c/{component}/", page, methods=["GET"]),
        Route("/c/{component}/_page/{name}", part, methods=["GET"]),
    ]


def static_file(name: str) -> Response:
    """One of the files that make up a page.

    Raises:
        HTTPException: no file has that name (404).
    """
    content = _web_files().get(name)
    if content is None:
        raise HTTPException(404)
    headers = FRAME_HEADERS if name == "frame.html" else {**PAGE_HEADERS, "Vary": "Accept"}
    return Response(content, media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)


@cache
def _web_files() -> Mapping[str, str]:
    """Name → content of everything that is served."""
    texts = {**shared_files(), **read_folder(files("chainrule.serve") / "_web")}
    texts["page.css"] = texts.pop("theme.css") + texts["page.css"]
    scripts = {name: join_modules(name, texts.__getitem__) for name in _SCRIPTS}
    return {name: text for name, text in texts.items() if not name.endswith(".js")} | scripts


def description_route(path: str, facts: Facts) -> Route:
    """The route of a component's description."""
    head, foot = _render(facts)

    async def description(request: Request) -> Response:
        address = str(request.url.replace(query="")).removesuffix("/docs")
        return HTMLResponse(f"{head}{_example(facts, address)}{foot}", headers=PAGE_HEADERS)

    return Route(path, description, methods=["GET"])


def _render(facts: Facts) -> tuple[str, str]:
    """What stands before and after the example, which names the server's address."""
    version = "" if facts.version == "unknown" else facts.version
    document = Document(facts.openapi)
    sides = "".join(
        f"<h2>{title}</h2>{_scrolling(title, Field.table(fields, is_styled=False))}"
        for title, fields in (
            ("Inputs", document.fields("inputs")),
            ("Outputs", document.fields("outputs")),
        )
    )
    head = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(facts.name)}</title>"
        "<link rel='icon' href='_page/icon.svg' type='image/svg+xml'>"
        "<link rel='stylesheet' href='_page/page.css'></head><body><main class='document'>"
        f"<h1>{escape(facts.name)} <span class='version'>{escape(version)}</span></h1>"
        f"<div class='lead'>{markdown(facts.description)}</div>"
        "<p><a href='./'>Try it</a>. ∂ marks what is differentiable.</p>"
        f"{sides}<h2>Endpoints</h2>{_endpoints(facts)}"
    )
    return head, "</main></body></html>"


def _endpoints(facts: Facts) -> str:
    capabilities = Document(facts.openapi).capabilities
    rows = "".join(
        f"<tr><td><code>POST {escape(name)}</code></td>"
        f"<td>{escape(str(capabilities.get(name, 'added by the server')))}</td></tr>"
        for name in facts.endpoints
    )
    table = (
        "<table><thead><tr><th scope='col'>request</th>"
        f"<th scope='col'>what it is</th></tr></thead><tbody>{rows}"
        "<tr><td><code>GET health</code></td><td>whether it is up</td></tr>"
        "<tr><td><code>GET <a href='openapi.json'>openapi.json</a></code></td>"
        "<td>all of this, for machines</td></tr></tbody></table>"
    )
    return _scrolling("Endpoints", table)


def _scrolling(label: str, table: str) -> str:
    """A table that scrolls on a small screen, also by the keys."""
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{label}'>{table}</div>"


def _example(facts: Facts, address: str) -> str:
    fields = Document(facts.openapi).fields("inputs")
    required = dict.fromkeys(f.path.partition(".")[0] for f in fields if f.is_required)
    inputs = ", ".join(f'"{name}": …' for name in required)
    code = (
        "from chainrule import Component\n\n"
        f'component = Component.from_url("{address}")\n'
        f"component.apply({{{inputs}}})"
    )
    return f"<h2>From Python</h2><pre>{escape(code)}</pre>"
