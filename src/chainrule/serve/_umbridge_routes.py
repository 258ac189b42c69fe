"""The routes of the UM-Bridge protocol: they read bodies and ask workers, which answer (`_umbridge`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule._codec import Limits
from chainrule._errors import ChainruleError
from chainrule.serve._calls import Call, CallError, Reply
from chainrule.serve._endpoint import (
    Disconnected,
    Intake,
    Receive,
    Send,
    answer_unless_left,
    declared_length,
    read_body,
    send_reply,
)
from chainrule.serve._options import ServeOptions
from chainrule.serve._pool import Service
from chainrule.serve._problems import status_of
from chainrule.serve._umbridge import (
    ANSWERS,
    RefusedError,
    model_names,
    named_model,
    parse_object,
    refusal,
)

_PROTOCOL = 1.0


def umbridge_routes(
    services: Mapping[str, Service], options: ServeOptions, intake: Intake, limits: Limits
) -> list[Route]:
    """The routes of the protocol for all components of a server."""
    models = {name: service for service in services.values() for name in model_names(service.name)}

    async def info(request: Request) -> Response:
        content = orjson.dumps({"protocolVersion": _PROTOCOL, "models": list(models)})
        return Response(content, media_type="application/json")

    return [
        Route("/Info", info, methods=["GET"]),
        *(
            Route(
                f"/{name}",
                UmbridgeEndpoint(name, models, options.read_timeout_s, intake, limits),
                methods=["POST"],
            )
            for name in ANSWERS
        ),
    ]


class UmbridgeEndpoint:
    """One `POST` route of the protocol as an ASGI application.

    Args:
        name: of the route.
        models: name of a model → its component.
        timeout_s: how long a caller may pause.
        intake: bounds the bodies of all endpoints together.
        limits: on a body that is parsed here, where there are several components.
    """

    def __init__(
        self,
        name: str,
        models: Mapping[str, Service],
        timeout_s: float,
        intake: Intake,
        limits: Limits,
    ) -> None:
        self._name = name
        self._models = models
        self._timeout_s = timeout_s
        self._intake = intake
        self._limits = limits
        services = list(models.values())
        self._max_bytes = max(service.facts.max_body_bytes for service in services)
        # The name of the model is in the body, which the event loop looks at only if it has to.
        self._only = services[0] if len({id(service) for service in services}) == 1 else None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            reply = await self._reply(dict(scope["headers"]), receive)
        except Disconnected:
            return
        except RefusedError as error:
            reply = refusal(error.kind, str(error), error.status)
        except CallError as error:
            reply = refusal("ModelError", error.message, error.http_status)
        except ChainruleError as error:
            status = status_of(error)
            reply = refusal("InvalidInput", error.message, 400 if status == 422 else status)
        await send_reply(send, reply)

    async def _reply(self, headers: Mapping[bytes, bytes], receive: Receive) -> Reply:
        nbytes = declared_length(headers, self._max_bytes)
        with self._intake.room_for(nbytes) as grow:
            body = await read_body(
                receive,
                nbytes,
                max_bytes=self._max_bytes,
                timeout_s=self._timeout_s,
                pool=None if self._only is None else self._only.pool.memory,
                grow=grow,
            )
            service = self._only
            if service is None:
                service = await asyncio.to_thread(self._service_of, body)
                body = service.pool.placed(body)
            return await answer_unless_left(service.call(Call(self._name, body)), receive)

    def _service_of(self, body: bytes) -> Service:
        return self._models[named_model(parse_object(body, self._limits), self._models)]
