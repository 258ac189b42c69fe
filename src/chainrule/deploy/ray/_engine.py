"""A pool on a cluster as a server uses it: requests go to replicas, and answers come back, as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from chainrule._codec import FRAMES_MEDIA_TYPE, decode_body
from chainrule._errors import ChainruleError, TransportError
from chainrule.client import Ticket
from chainrule.client.internal import fingerprint
from chainrule.deploy.ray._actor import Envelope, as_shared
from chainrule.deploy.ray._deploy import attach, deploy
from chainrule.deploy.ray._pool import RayPool
from chainrule.serve import ServeOptions
from chainrule.serve.internal import (
    ENDPOINT_OF,
    Call,
    CallError,
    Facts,
    Pool,
    Reply,
    WorkerState,
    following_in_thread,
)

POOL_PREFIX = "pool:"

# A body is decoded here only to find its replica, which must cost less than another forward pass.
_READ_JSON_BYTES = 1 << 16


def make_server_pool(source: Any, config: Any, options: ServeOptions) -> RayServerPool:
    """The pool that answers the calls of a component; see `engine`."""

    def open_pool() -> RayPool:
        if isinstance(source, str) and source.startswith(POOL_PREFIX):
            name = source.removeprefix(POOL_PREFIX)
            return attach(name, startup_timeout=options.startup_timeout_s)
        component = deploy(
            source,
            replicas=max(1, options.workers),
            config=config,
            timeout=options.timeout_s,
            startup_timeout=options.startup_timeout_s,
        )
        assert isinstance(component.transport, RayPool)
        return component.transport

    return RayServerPool(open_pool, max_queue=options.max_queue)


class RayServerPool(Pool):
    """A `RayPool` behind the interface of a server's pools.

    Args:
        open_pool: finds the pool or deploys it.
        max_queue: how many calls may wait.
    """

    def __init__(self, open_pool: Callable[[], RayPool], *, max_queue: int) -> None:
        super().__init__(max_queue=max_queue)
        self._open_pool = open_pool
        self._pool: RayPool | None = None

    async def start(self) -> Facts:
        """Find or deploy the pool."""
        loop = asyncio.get_running_loop()
        self._pool = await loop.run_in_executor(None, self._open_pool)
        self._threads = ThreadPoolExecutor(
            self._pool.max_concurrency, thread_name_prefix="chainrule-pool"
        )
        return Facts(**self._pool.facts)

    @property
    def queue_length(self) -> int:
        """How many calls wait here; each server in front of a pool has a queue of its own."""
        return max(0, self.under_way - self.size)

    @property
    def size(self) -> int:
        """How many calls can be under way."""
        return 0 if self._pool is None else self._pool.max_concurrency

    @property
    def workers(self) -> list[WorkerState]:
        """What the replicas do with the calls of this server."""
        if self._pool is None:
            return []
        replicas = self._pool.status()["replicas"]
        return [
            WorkerState(number, None, replica["state"], replica["restarts"])
            for number, replica in enumerate(replicas)
            if replica["state"] != "leaving"
        ]

    async def answer(self, call: Call) -> Reply:
        """Have a call answered by a replica.

        Raises:
            CallError: the queue is full, the server stops, too slow, or no replica is up.
            ReplicaLostError: the replica died, and the call may not be repeated.
            InputError: the call kills every replica that tries (`poison_input`).
        """
        if self.is_stopping:
            raise CallError.stopping()
        if self.queue_length > self.max_queue:  # this call is counted already
            raise CallError.unavailable(f"{self.max_queue} calls wait already.", "queue_full")
        if call.watcher is not None:
            await call.watcher.on_start()
        ticket = Ticket()
        try:
            loop = asyncio.get_running_loop()
            ask = self._ask if call.watcher is None else partial(self._ask_watched, loop)
            envelope = await loop.run_in_executor(self._threads, ask, call, ticket)
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        except TransportError as error:
            raise _as_call_error(error) from error
        return Reply(envelope.status, envelope.content_type, [memoryview(envelope.body)])

    def _ask_watched(self, loop: asyncio.AbstractEventLoop, call: Call, ticket: Ticket) -> Envelope:
        assert call.watcher is not None
        with following_in_thread(call.watcher, loop):
            return self._ask(call, ticket)

    def _ask(self, call: Call, ticket: Ticket) -> Envelope:
        assert self._pool is not None
        body = as_shared(call.body)
        endpoint = ENDPOINT_OF.get(call.endpoint, call.endpoint)
        return self._pool.attempt(
            endpoint,
            self._point(call, endpoint),
            lambda replica: replica.answer(call.told, body, ticket),  # type: ignore[attr-defined]
            ticket,
        )

    def _point(self, call: Call, endpoint: str) -> bytes | None:
        """Fingerprint of the inputs, where it is cheap."""
        assert self._pool is not None
        is_umbridge = call.endpoint != endpoint
        content_type = "application/json" if is_umbridge else call.content_type
        is_cheap = content_type == FRAMES_MEDIA_TYPE or len(call.body) <= _READ_JSON_BYTES
        if call.content_encoding or not is_cheap or not self._pool.depends_on_replica(endpoint):
            return None
        try:
            payload = decode_body(call.body, media_type=content_type)
        except ChainruleError:
            payload = None
        if not isinstance(payload, dict):
            return None  # the replica reports what is wrong with it
        # UM-Bridge sends vectors as `input`, and what does not vary as `config`.
        names = ("input", "config") if is_umbridge else ("inputs",)
        return fingerprint([payload.get(name) for name in names])

    async def stop(self) -> None:
        """Stop using the pool; one that was deployed for this server ends."""
        self.is_stopping = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, pool.close)
            self._threads.shutdown(wait=False)


def _as_call_error(error: TransportError) -> TransportError:
    if error.code == "pool_unavailable":
        return CallError.unavailable(error.message, error.code, 5)
    if error.code == "call_timeout":
        return CallError(error.message, code=error.code, status=504)
    return error
