"""`/docs`: what a component takes and gives, on one page without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from chainrule.serve._calls import Facts
from chainrule.serve._page import PAGE_HEADERS

__all__ = ["description_route"]


def description_route(path: str, facts: Facts) -> Route:
    """The route of a component's description."""
    content = _render(facts)

    async def description(request: Request) -> Response:
        return HTMLResponse(content, headers=PAGE_HEADERS)

    return Route(path, description, methods=["GET"])


def _render(facts: Facts) -> str:
    schemas = facts.openapi.get("components", {}).get("schemas", {})
    endpoints = "".join(f"<li><code>POST /{escape(name)}</code></li>" for name in facts.endpoints)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(facts.name)}</title>"
        "<link rel='stylesheet' href='_page/page.css'></head><body class='document'>"
        f"<h1>{escape(facts.name)} <span class='version'>{escape(facts.version)}</span></h1>"
        f"<p class='lead'>{escape(facts.description)}</p>"
        "<p><a href='./'>Try it</a></p>"
        f"<h2>Inputs</h2>{_side(schemas, 'Input')}"
        f"<h2>Outputs</h2>{_side(schemas, 'Output')}"
        f"<h2>Endpoints</h2><ul>{endpoints}<li><code>GET /health</code></li>"
        "<li><code>GET <a href='openapi.json'>/openapi.json</a></code></li></ul>"
        f"{_example(facts)}</body></html>"
    )


def _side(schemas: Mapping[str, Any], side: str) -> str:
    wrapper = schemas.get(f"Apply{side}Schema", {})
    differentiable = wrapper.get("differentiable_arrays", {})
    model = _model(schemas, wrapper, side)
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}"
        f"{_tag(name, differentiable)}</td><td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in model.get("properties", {}).items()
    )
    return f"<table class='lines'><tr><th>name</th><th>type</th><th></th></tr>{rows}</table>"


def _model(schemas: Mapping[str, Any], wrapper: Mapping[str, Any], side: str) -> Mapping[str, Any]:
    inner = wrapper.get("properties", {}).get("inputs", wrapper) if side == "Input" else wrapper
    name = inner.get("$ref", "").rpartition("/")[2]
    return schemas.get(name, inner)


def _kind(field: Mapping[str, Any]) -> str:
    properties = field.get("properties", {})
    if "shape" in properties and "dtype" in properties:
        title = str(field.get("title", "array")).split("__")
        return f"array {title[2]} [{title[1].replace('_', ', ')}]" if len(title) > 2 else "array"
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("type", "any"))


def _tag(name: str, differentiable: Mapping[str, Any]) -> str:
    is_one = any(path == name or path.startswith(f"{name}.") for path in differentiable)
    return " <span class='tag'>differentiable</span>" if is_one else ""


def _example(facts: Facts) -> str:
    return (
        "<h2>From Python</h2><pre>from chainrule import Component\n\n"
        f'{escape(_identifier(facts.name))} = Component.from_url("http://…")\n'
        f"{escape(_identifier(facts.name))}.apply({{…}})</pre>"
    )


def _identifier(name: str) -> str:
    text = "".join(c if c.isalnum() else "_" for c in name)
    return text if text.isidentifier() else "component"
