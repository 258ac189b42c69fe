"""`/ready` and `/metrics`: answered by the event loop, whatever the workers do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from chainrule.serve._service import Service

__all__ = ["status_routes"]


def status_routes(services: Mapping[str, Service]) -> list[Route]:
    """The routes that tell how the server is."""

    async def ready(request: Request) -> Response:
        states = {name: _state(service) for name, service in services.items()}
        is_ready = all(state["ready"] for state in states.values())
        content = {"status": "ready" if is_ready else "degraded", "components": states}
        return JSONResponse(content, status_code=200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(_metrics(services))

    return [
        Route("/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _state(service: Service) -> dict[str, object]:
    pool = service.pool
    return {"ready": pool.is_ready, "workers": pool.alive, "queue": pool.queue_length}


def _metrics(services: Mapping[str, Service]) -> str:
    """Prometheus text: counters of what happened, gauges of what is."""
    lines = []
    for name, service in services.items():
        pool = service.pool
        label = f'{{component="{name}"}}'
        counters = asdict(pool.counters)
        running = counters.pop("running")
        lines += [f"chainrule_calls_{key}_total{label} {value}" for key, value in counters.items()]
        lines.append(f"chainrule_calls_running{label} {running}")
        lines.append(f"chainrule_calls_waiting{label} {pool.queue_length}")
        lines.append(f"chainrule_workers{label} {pool.alive}")
    return "\n".join(lines) + "\n"
