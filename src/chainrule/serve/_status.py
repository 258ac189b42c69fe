"""`/ready`, `/status` and `/metrics`: answered by the event loop, whatever the workers do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from chainrule import __version__
from chainrule.serve._exposition import exposition
from chainrule.serve._jobs import Jobs
from chainrule.serve._service import Service
from chainrule.serve._traffic import percentiles

_RATE_WINDOW_S = 10.0


def status_routes(services: Mapping[str, Service], jobs: Jobs) -> list[Route]:
    """The routes that tell how the server is."""
    started = time.monotonic()

    async def ready(request: Request) -> Response:
        states = {name: _state(service) for name, service in services.items()}
        is_ready = all(state["ready"] for state in states.values())
        content = {"status": "ready" if is_ready else "degraded", "components": states}
        return JSONResponse(content, status_code=200 if is_ready else 503)

    async def status(request: Request) -> Response:
        content = {
            "version": __version__,
            "uptime_s": time.monotonic() - started,
            **_load(services),
            "jobs": await jobs.counts(),
        }
        return JSONResponse(content, headers={"Cache-Control": "no-store"})

    async def metrics(request: Request) -> Response:
        text = exposition(services, await jobs.counts())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return [
        Route("/ready", ready, methods=["GET"]),
        Route("/status", status, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _state(service: Service) -> dict[str, object]:
    pool = service.pool
    return {"ready": pool.is_ready, "workers": pool.alive, "queue": pool.queue_length}


def _load(services: Mapping[str, Service]) -> dict[str, Any]:
    pools = [service.pool for service in services.values()]
    traffic = [pool.traffic for pool in pools]
    now = time.perf_counter()
    recent = [entry for counted in traffic for entry in counted.recent]
    lately = [ended for ended, _ in recent if now - ended <= _RATE_WINDOW_S]
    return {
        "components": [_facts(service) for service in services.values()],
        "workers": [
            {**worker._asdict(), "component": name}
            for name, service in services.items()
            for worker in service.pool.workers
        ],
        "queue": {
            "length": sum(pool.queue_length for pool in pools),
            "limit": sum(pool.max_queue for pool in pools),
        },
        "requests": {
            "total": sum(counted.total for counted in traffic),
            "errors": sum(counted.errors for counted in traffic),
            "in_flight": sum(pool.counters.running + pool.queue_length for pool in pools),
            "per_second": len(lately) / _RATE_WINDOW_S,
        },
        "latency_s": percentiles([seconds for _, seconds in recent]),
    }


def _facts(service: Service) -> dict[str, Any]:
    facts = service.facts
    return {
        "name": service.name,
        "version": facts.version,
        "hash": facts.content_hash,
        "endpoints": facts.endpoints,
    }
