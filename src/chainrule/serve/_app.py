"""The ASGI application: components in, routes out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chainrule._describe import did_you_mean
from chainrule._errors import DefinitionError, StorageError
from chainrule._files import Scratch
from chainrule._same_host import SegmentPool, is_supported
from chainrule.runtime import ComponentConfig, LocalComponent
from chainrule.serve._calls import Facts, url_name
from chainrule.serve._endpoint import Endpoint, Intake
from chainrule.serve._file_routes import Exchange
from chainrule.serve._jobs import JobReplies, Jobs, job_routes, with_server_routes
from chainrule.serve._logs import AccessLog, ErrorStream, Output, OutputLog
from chainrule.serve._merging import Merger
from chainrule.serve._metrics import status_routes
from chainrule.serve._options import ServeOptions
from chainrule.serve._page import description_route, page_routes
from chainrule.serve._pool import Pool, Service, WorkerPool
from chainrule.serve._problems import PROBLEM
from chainrule.serve._same_host import SameHostListener
from chainrule.serve._security import Accounts, BearerToken
from chainrule.serve._server_endpoints import ADDED
from chainrule.serve._umbridge_routes import umbridge_routes
from chainrule.serve._watched_files import WatchedFiles, keep_looking

_log = logging.getLogger(__name__)

_MAX_SHOWN = 100  # characters of a path
_COMPONENT = re.compile(r"/c/([^/]+)")

MakePool = Callable[[Any, ComponentConfig, ServeOptions], Pool]
"""Makes what answers the calls of a component, from its source and settings."""


def create_app(
    components: Any,
    *,
    options: ServeOptions | None = None,
    config: ComponentConfig | None = None,
    make_pool: MakePool | None = None,
) -> Any:
    """An ASGI application that serves components, for uvicorn or any other server.

    Args:
        components: one source or several: paths, `path.py:name`, modules, functions or components (see
            `chainrule.runtime`). Worker processes load them themselves, so with `workers > 0` a source is
            a path or something that can be pickled.
        options: how to serve.
        config: settings of every component.
        make_pool: what answers calls, in place of worker processes; see `chainrule.deploy.ray.engine`.

    Returns:
        The application. The first component answers at `/`, all of them at `/c/<name>/`.
    """
    options = options or ServeOptions()
    return Server(components, options=options, config=config, make_pool=make_pool).app


class Server:
    """The components of one application and what runs them.

    Attributes:
        app: the ASGI application.
        services: name → component, once started.
        accounts: who may call, where tokens are asked for.
        watched: files that are read again when they change.
        is_draining: whether the server is about to stop.
    """

    def __init__(
        self,
        components: Any,
        *,
        options: ServeOptions,
        config: ComponentConfig | None = None,
        make_pool: MakePool | None = None,
    ) -> None:
        self._options = options
        sources = _as_sources(components)
        # Each worker has its share of the memory for bodies: however small the bodies of all workers are,
        # what they expand to fits into what the operator has set aside.
        self._share = options.max_inflight_bytes // (len(sources) * max(1, options.workers))
        self._config = _as_served(config or ComponentConfig(), options, self._share)
        file = options.log_file
        self._output: Output = ErrorStream() if file is None else OutputLog(file)
        self._scratches: list[Scratch] = []
        self._memory = SegmentPool()
        make_pool = make_pool or self._make_pool
        self._pools = [make_pool(source, self._config_of(source), options) for source in sources]
        self._intake = Intake(options.max_inflight_bytes)
        self._jobs = Jobs(options, self._output)
        self._job_replies = JobReplies(self._jobs, self._config)
        self.services: dict[str, Service] = {}
        self.startup_error: BaseException | None = None
        self._starting: asyncio.Task[None] | None = None
        self._same_host: SameHostListener | None = None
        self._starlette = Starlette(
            lifespan=self._lifespan, exception_handlers={HTTPException: self._on_http_exception}
        )
        self.accounts: Accounts | None = None
        self.watched: list[WatchedFiles] = []
        self.is_draining = False
        self._watching: asyncio.Task[None] | None = None
        self._posts: dict[str, Any] = {}
        self.app: Any = self._dispatch
        if options.token_file is not None:
            self.accounts = Accounts(options.token_file, self._on_revoked)
            self.watched.append(self.accounts.files)
            self.app = BearerToken(self._dispatch, self.accounts, self._count_refused)
        if options.access_log:
            self.app = AccessLog(self.app)

    def _make_pool(self, source: Any, config: ComponentConfig, options: ServeOptions) -> Pool:
        if options.workers > 1 and config.residual_folder is None:
            config = config.replace(residual_folder=self._shared_folder())
        return WorkerPool(
            source,
            config,
            workers=options.workers,
            timeout_s=options.timeout_s,
            max_queue=options.max_queue,
            startup_timeout_s=options.startup_timeout_s,
            output=self._output,
            memory=self._memory,
        )

    def _shared_folder(self) -> Path | None:
        """Where workers find each other's residuals; without a place for it each has its own only."""
        try:
            scratch = Scratch("residuals", in_memory=True)
        except StorageError as error:
            _log.warning("Workers do not share residuals: %s", error.message)
            return None
        self._scratches.append(scratch)
        return scratch.path

    def _config_of(self, source: Any) -> ComponentConfig:
        if isinstance(source, LocalComponent):
            return _as_served(source.config, self._options, self._share)
        return self._config

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            self._starting = asyncio.create_task(self._start())
            await self._starting
        except BaseException as error:
            self.startup_error = error
            await self.stop()
            raise
        try:
            yield
        finally:
            await self.drain()

    async def _start(self) -> None:
        for pool in self._pools:
            facts = await pool.start()
            name = url_name(facts.name)
            if name in self.services:
                raise DefinitionError(
                    f"Two components are called {name!r}; give one another name.",
                    code="duplicate_component",
                )
            self.services[name] = Service(name, pool, facts, self._merger(pool, facts))
        self._warn_of_unknown_names()
        if self._options.same_host and is_supported():
            self._same_host = SameHostListener()
        await self._jobs.start(self.services)
        self._watching = asyncio.create_task(keep_looking(self.watched))
        self._starlette.router.routes[:] = routes = self._routes()
        self._posts = {route.path: route.app for route in routes if route.methods == {"POST"}}

    def _warn_of_unknown_names(self) -> None:
        names = {service.facts.name for service in self.services.values()}
        for unknown in sorted(self._config.cache - names - {"*"}):
            _log.warning(
                "Nothing is kept for %r (--cache): served here are %s.", unknown, ", ".join(names)
            )

    def _merger(self, pool: Pool, facts: Facts) -> Merger | None:
        """What merges calls, where author or operator want that."""
        wanted = self._options.merge_up_to
        size = facts.merge_up_to if wanted is None else wanted
        if size < 2 or facts.batching is None:
            return None
        return Merger(pool, max_size=size, delay_s=self._options.merge_delay_s)

    async def _dispatch(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request: calls of components by their path, everything else by the router.

        A router looks at one route after the other, and adds to a request what calls do not need (middleware,
        exception handlers): they answer every error themselves. The router has them too, for an application
        that is mounted below another path.
        """
        is_call = scope["type"] == "http" and scope["method"] == "POST"
        answer = self._posts.get(scope["path"]) if is_call else None
        await (answer or self._starlette)(scope, receive, send)

    def _count_refused(self, scope: MutableMapping[str, Any], status: int) -> None:
        """Count a request that was turned away before it came here, where it is a call of a component."""
        endpoint = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        if isinstance(endpoint, Endpoint):
            endpoint.refuse(status)

    def _on_revoked(self) -> None:
        """A token is not valid any more: what was agreed with its holder beside HTTP ends too."""
        if self._same_host is not None:
            self._same_host.renew()

    def _places(self) -> list[tuple[str, Service]]:
        """Where components answer: the first at the root, all under their names."""
        first = next(iter(self.services.values()))
        named = [(f"/c/{name}", service) for name, service in self.services.items()]
        return [("", first), *named]

    def _routes(self) -> list[Any]:
        routes: list[Any] = []
        if self._options.umbridge:
            limits = self._config.limits
            routes += umbridge_routes(self.services, self._options, self._intake, limits)
        for prefix, service in self._places():
            routes += self._component_routes(prefix, service)
        routes.append(Route("/same-host", self._on_same_host, methods=["GET"]))
        routes += status_routes(self, self._jobs) + job_routes(self._job_replies)
        if self._options.max_upload_bytes:
            routes += Exchange(self._config, self._options).routes()
        return routes + page_routes()

    async def _on_same_host(self, request: Request) -> Response:
        if self._same_host is None:
            raise HTTPException(404)
        return JSONResponse(self._same_host.offer, headers={"Cache-Control": "no-store"})

    async def _on_http_exception(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        path = request.url.path[:_MAX_SHOWN]
        messages = {
            404: self._not_found(request.url.path, path),
            405: f"{path} takes {(error.headers or {}).get('Allow', 'other methods')}, not {request.method}.",
        }
        content = {
            "type": f"urn:chainrule:error:{code}",
            "status": error.status_code,
            "code": code,
            "message": messages.get(error.status_code, error.detail),
            "detail": error.detail,  # as the peer has it
        }
        return JSONResponse(
            content, status_code=error.status_code, headers=error.headers, media_type=PROBLEM
        )

    def _not_found(self, path: str, shown: str) -> str:
        named = _COMPONENT.match(path)
        if named is not None and named[1] not in self.services:
            served = ", ".join(f"/c/{name}" for name in self.services)
            meant = did_you_mean(named[1], self.services)
            return f"This server has no component at {shown}; it serves {served}.{meant}"
        return f"There is nothing at {shown}; /docs and /openapi.json list what this server offers."

    def _component_routes(self, prefix: str, service: Service) -> list[Any]:
        facts = service.facts
        # Routes of the server are below its root, not below every component.
        document = dict(facts.openapi if prefix else with_server_routes(facts.openapi))
        document["x-job-store"] = self._jobs.store_id
        document["x-added"] = [name for name in facts.endpoints if name in ADDED]
        if self._options.max_upload_bytes:
            document["x-files"] = {"max_bytes": self._options.max_upload_bytes}

        async def openapi(request: Request) -> Response:
            return JSONResponse(document)

        endpoints = [
            Route(
                f"{prefix}/{name}",
                Endpoint(
                    service,
                    name,
                    self._options,
                    self._same_host,
                    self._intake,
                    self._job_replies,
                ),
                methods=["POST"],
            )
            for name in facts.endpoints
        ]
        return [
            *endpoints,
            Route(f"{prefix}/health", _health, methods=["GET"]),
            Route(f"{prefix}/openapi.json", openapi, methods=["GET"]),
            description_route(f"{prefix}/docs", facts),
        ]

    def give_up_starting(self) -> None:
        """Stop loading components, if that is not over yet; `startup_error` is then a cancellation."""
        if self._starting is not None:
            self._starting.cancel()

    async def drain(self) -> None:
        """Take no new calls; give those under way the grace period, then stop the workers.

        Jobs are held first: a job that began during the grace period would be killed at its end.
        """
        self.is_draining = True
        await self._jobs.hold()
        # All pools at the same time: one after the other, each would have its own grace period.
        await asyncio.gather(*(pool.drain(self._options.grace_s) for pool in self._pools))
        await self.stop()

    async def stop(self) -> None:
        """End everything; safe to call twice, and before the start is complete.

        The order: clients lose their channels, so that no new memory comes; the workers end, so that running
        jobs fail; the jobs write down how they ended; what the workers shared goes last.
        """
        if self._watching is not None:
            self._watching.cancel()
        if self._same_host is not None:
            self._same_host.close()
            self._same_host = None
        for pool in self._pools:
            await pool.stop()
        await self._jobs.stop()
        await asyncio.to_thread(self._output.close)
        while self._scratches:
            self._scratches.pop().remove()


def _as_served(config: ComponentConfig, options: ServeOptions, share: int) -> ComponentConfig:
    """A component's settings, with what the server is told about all of them."""
    expanded = min(config.limits.max_expanded_bytes, share)
    return config.replace(
        limits=replace(config.limits, max_expanded_bytes=expanded),
        device_exchange_share=options.device_exchange_share,
        debug=options.debug,
        log_format=options.log_format,
        traces_to=options.traces_to or config.traces_to,
    )


def _as_sources(components: Any) -> list[Any]:
    several = isinstance(components, Sequence) and not isinstance(components, str)
    sources = list(components) if several else [components]
    if not sources:
        raise DefinitionError("There is no component to serve.", code="no_component")
    return sources


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})
