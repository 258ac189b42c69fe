"""The page of a component, at `/` for browsers: HTML, a style sheet, an icon and one ES module.

They know nothing about the component: what they show they ask for with the caller's token, so they can be
handed to whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from chainrule.serve._script import join_modules

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_MEDIA_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_SCRIPTS = ("page.js", "dashboard.js")
"""The files that pages start with. The others under `_web` are parts of these, and not served alone."""
_PLACE = re.compile(r"(/c/[^/]+)?/")
_ASSET = re.compile(r"(/c/[^/]+)?/_page/[a-z_]+\.(css|js|svg)")


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

    Any name under `/c/` gets the page: who has no token shall not learn which names there are.
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
        HTTPException: there is none of that name (404).
    """
    content = _web_files().get(name)
    if content is None:
        raise HTTPException(404)
    headers = {**PAGE_HEADERS, "Vary": "Accept"}
    return Response(content, media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)


@cache
def _web_files() -> Mapping[str, str]:
    """Name → content of everything that is served."""
    folder = files("chainrule.serve") / "_web"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    scripts = {name: join_modules(name, texts.__getitem__) for name in _SCRIPTS}
    return {name: text for name, text in texts.items() if not name.endswith(".js")} | scripts
