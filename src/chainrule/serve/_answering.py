"""From the bytes of a call to the bytes of its reply: the whole work of a worker.

`Answerer` decodes the body, calls the component and encodes the result. It is used by worker processes, by
the worker thread and by replicas on a cluster. Beside the component's own endpoints there are those
that a server adds (`_server_endpoints`), the cache of results (`ResultCache`) and forward passes whose inputs
are kept for derivatives (`KeptPasses`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, TypeVar

from pydantic import ValidationError

from chainrule._codec import (
    FRAMES_MEDIA_TYPE,
    TRUSTING_LIMITS,
    BinrefWriter,
    Negotiated,
    decode_body,
    encode_body,
    expand_body,
    negotiate,
)
from chainrule._content_store import SharedFolder, content_name
from chainrule._describe import describe_value
from chainrule._device import own_copy
from chainrule._endpoints import DERIVATIVE_ENDPOINTS
from chainrule._errors import ChainruleError, ComponentError, InputError
from chainrule._lru_cache import LRUCache
from chainrule._tracing import export_spans, is_traced, span
from chainrule._trees import iterate_leaves
from chainrule.runtime import ComponentConfig, LocalComponent, load_component
from chainrule.runtime.internal import Run, failure_of, reuse_residuals
from chainrule.serve._calls import Call, Cancelled, Facts, Reply
from chainrule.serve._devices import (
    CHECK_ENDPOINT,
    EXPORTS_HEADER,
    TRANSPORTS,
    DeviceMemory,
)
from chainrule.serve._merging import MergedCalls, pack_replies, unpack_calls
from chainrule.serve._problems import problem_reply
from chainrule.serve._server_endpoints import ADDED, WITHOUT_ARRAYS, added_endpoints
from chainrule.serve._umbridge import ANSWERS, EVALUATE, UmbridgeModels, as_umbridge

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Answerer:
    """Answers calls with one component. Runs wherever author code may run, never on the event loop.

    Args:
        component: the component.
        copy_results: `False` where a reply is written out before the next call begins: until then its pieces
            may be arrays of the author's.

    Attributes:
        component: the component.
        devices: what it exchanges with callers on its GPU, if it computes on one.
    """

    def __init__(self, component: LocalComponent, *, copy_results: bool = True) -> None:
        self.component = component
        self.devices = DeviceMemory.of(component)
        self._copy_results = copy_results
        self._config = component.config
        self._cache = ResultCache.of(component)
        self._passes = KeptPasses(self._config.max_residual_bytes)
        self._merged = MergedCalls(
            component, decode=self._payload, encode=self._encoded, answer=self._reply
        )

    @cached_property
    def _umbridge(self) -> UmbridgeModels:
        return UmbridgeModels(
            self.component, lambda name, payload: self.compute(name, payload, Run(self._config))
        )

    @classmethod
    def load(
        cls,
        source: Any,
        config: ComponentConfig,
        *,
        copy_results: bool = True,
        remembered: int = 4,
    ) -> Answerer:
        """Load a component, in the process and on the thread that will answer its calls.

        Args:
            source: what `load_component` takes.
            config: the component's settings.
            copy_results: see `Answerer`.
            remembered: how many forward passes of a JAX component are remembered for their gradients.

        Raises:
            ChainruleError: the component cannot be loaded.
            Exception: what the component's code raised.
        """
        component = only_here(lambda: load_component(source, config=config))
        reuse_residuals(component, remembered=remembered)
        if component.config.traces_to:
            export_spans(component.config.traces_to, component.name)
        return cls(component, copy_results=copy_results)

    @property
    def facts(self) -> Facts:
        """What the server tells about the component."""
        component = self.component
        endpoints = [name for name in component.available_endpoints if name != "health"]
        endpoints += added_endpoints(component)
        if self.devices is not None:
            endpoints.append(CHECK_ENDPOINT)
        if self._config.debug:
            endpoints.append("test")
        return Facts(
            component.name,
            component.version,
            component.description,
            endpoints,
            component.openapi_schema,
            self._config.limits.max_body_bytes,
            component.content_hash,
            component.batching,
            component.merge_up_to,
        )

    def answer(self, call: Call) -> Reply:
        """Decode, compute, encode. An error becomes a problem reply."""
        if call.merged:
            return self._answer_merged(call)
        if not is_traced(call.traceparent):
            return self._reply(call)
        facts = {"chainrule.component": self.component.name, "chainrule.endpoint": call.endpoint}
        name = f"{self.component.name} {call.endpoint}"
        with span(name, kind="SERVER", parent=call.traceparent, attributes=facts) as current:
            reply = self._reply(call)
            if current is not None:
                current.set_attribute("http.response.status_code", reply.status)
            return reply

    def compute(self, endpoint: str, payload: Mapping[str, Any], run: Run) -> Any:
        """The result of an endpoint, for a request that is decoded already; raises what the call raises."""
        return only_here(lambda: self._result(endpoint, payload, run))

    def _answer_merged(self, call: Call) -> Reply:
        calls = unpack_calls(call.body)
        try:
            replies = only_here(lambda: self._merged.answer(calls))
        except Cancelled:
            raise
        except BaseException:  # one by one they say what is wrong
            replies = [self._reply(call) for call in calls]
        return Reply(200, "application/octet-stream", pack_replies(replies))

    def _encoded(self, call: Call, result: Any) -> Reply:
        if call.endpoint == EVALUATE:
            return self._umbridge.evaluated(call, result)
        return self._in_form(call, self._form(call), result, Run(self._config))

    def _in_form(self, call: Call, form: Negotiated, result: Any, run: Run) -> Reply:
        exported = ""
        if self.devices is not None and call.endpoint != CHECK_ENDPOINT:
            result, exported = self.devices.write(result, form)
        pieces = encode_result(result, form, self._config, lambda: run.folder.name)
        reply = Reply(200, form.media_type, pieces, reuse=dict(run.reuse))
        return _naming(reply, exported)

    def _reply(self, call: Call) -> Reply:
        if self.devices is None:
            return self._reply_of_host(call)
        self.devices.release(call.exports_done)
        reply = self._reply_of_host(call)
        # Copies on a GPU are only queued when a function returns. The reply tells the caller that its buffers
        # are free and that the answer is there, so both have to be true before it is sent.
        self.devices.finish()
        reply = reply._replace(device_bytes=self.devices.held_bytes)
        if call.accept is None or "gpu_transport=cuda_ipc" not in call.accept:
            return reply
        # By this the caller knows that the worker has replied, not a server in its place.
        return reply._replace(content_type=f"{reply.content_type}; gpu_transport=cuda_ipc")

    def _reply_of_host(self, call: Call) -> Reply:
        if call.endpoint in ANSWERS:
            return as_umbridge(self._answered(call, self._umbridge.answer))
        return self._answered(call, self._answer)

    def _answered(self, call: Call, answer: Callable[[Call], Reply]) -> Reply:
        try:
            return answer(call)
        except ChainruleError as error:
            if isinstance(error, ComponentError):  # callers' mistakes are not in the author's log
                _log.error("%s", error.message, exc_info=error if self._config.debug else None)
            return problem_reply(error, debug=self._config.debug)
        except Exception as error:
            _log.exception("%s failed outside of the component", call.endpoint)
            hidden = ComponentError(
                f"The server failed on this request ({type(error).__name__}).",
                code="internal_error",
            )
            hidden.__cause__ = error
            return problem_reply(hidden, debug=self._config.debug)
        except Cancelled:
            raise
        # Such as a KeyboardInterrupt: Ctrl-C is not for this process.
        except BaseException as error:
            return problem_reply(failure_of(call.endpoint, error), debug=self._config.debug)

    def _answer(self, call: Call) -> Reply:
        # The order of what follows: first what costs nothing and may refuse, then reading, then the copy that
        # is kept (before the author's code may overwrite the inputs), and the token last: a pass that failed
        # has none.
        form = self._form(call)  # what cannot be answered is not computed
        run = Run(self._config, run_id=call.run_id)
        payload = self._payload(call)
        if self.devices is not None and call.endpoint == CHECK_ENDPOINT:
            result, exported = self.devices.check(payload)
            return _naming(self._in_form(call, form, result, run), exported)
        self._passes.complete(call, payload)
        kept = self._passes.inputs_to_keep(call, payload)
        result = self.compute(call.endpoint, payload, run)
        reply = self._in_form(call, form, result, run)
        return reply if kept is None else reply._replace(forward_pass=self._passes.keep(kept))

    def _form(self, call: Call) -> Negotiated:
        form = negotiate(
            call.accept,
            default_format=self._config.output_format,
            default_compression=self._config.compression,
            gpu_transports=TRANSPORTS if self.devices is not None else TRANSPORTS[:1],
        )
        return plain_form(call.endpoint, form)

    def _payload(self, call: Call, count: int = 1) -> dict[str, Any]:
        """The data of a call, one of `count` calls that are in memory together."""
        config = self._config
        limits = config.limits.shared_by(count)
        if call.endpoint == EVALUATE:
            return self._umbridge.evaluation(call, limits)
        body, limits = expand_body(call.body, call.content_encoding, limits)
        payload = decode_body(
            body,
            media_type=call.content_type,
            grants=config.grants,
            limits=limits,
            writable=True,  # the arrays become the author's, without another copy
            on_device=self.devices is not None,
        )
        if not isinstance(payload, dict):
            raise InputError(
                f"Expected an object as body; found {describe_value(payload)}.",
                code="invalid_input",
            )
        if self.devices is None or call.endpoint == CHECK_ENDPOINT:
            return payload
        is_native = FRAMES_MEDIA_TYPE in call.content_type
        return self.devices.read(payload, is_native=is_native)

    def _result(self, endpoint: str, payload: Mapping[str, Any], run: Run) -> Any:
        if endpoint == "test":
            return self._test(payload)
        if endpoint in ADDED:
            return ADDED[endpoint](self.component, payload, run)
        compute = partial(
            self.component.call,
            endpoint,
            payload,
            run=run,
            copy_inputs=False,
            copy_results=self._copy_results,
        )
        if self._cache is None:
            return compute()
        return self._cache.result(endpoint, payload, compute, run)

    def _test(self, payload: Mapping[str, Any]) -> dict[str, str]:
        """Run a regression test that the caller sends; only there when debugging."""
        from chainrule.runtime.testing import run_test

        try:
            return asdict(run_test(self.component, payload))
        except ValidationError as error:
            raise InputError(
                f"This is not a regression test: {error.errors()[0]['msg']}.", code="invalid_input"
            ) from None


def _naming(reply: Reply, exported: str) -> Reply:
    """A reply that names what is exported with it."""
    if not exported:
        return reply
    return reply._replace(headers=(*reply.headers, (EXPORTS_HEADER, exported.encode())))


def only_here(function: Callable[[], T]) -> T:
    """What a function of the author's gives, in the process that called it; a child of it ends.

    A process that author code forked does not become a second worker. `os.fork` returns twice: a child that
    comes back from the author's function holds the same connection as its parent, so its answer would be
    taken for the parent's, and its parent's for the answer to the next call. So the child ends where it
    leaves the author's code. `os._exit` runs no handlers and flushes no buffers: they belong to its parent.
    """
    process = os.getpid()
    try:
        return function()
    finally:
        if os.getpid() != process:
            _end(sys.exception())


def _end(error: BaseException | None) -> None:
    if error is not None:
        with contextlib.suppress(Exception):
            traceback.print_exception(error)
            sys.stderr.flush()
    # `sys.exit` would raise through frames that belong to the parent, down to the loop that reads the next
    # call.
    os._exit(0 if error is None else 1)


def encode_result(
    result: Any, form: Negotiated, config: ComponentConfig, run_name: Callable[[], str]
) -> list[Any]:
    """A result as the pieces of a body.

    Args:
        result: a plain tree.
        form: format, compression, and whether sparse arrays may be sent as such.
        config: says where files go.
        run_name: gives the folder of the run, for arrays that go to files; not called for others.
    """
    options: dict[str, Any] = {
        "format": form.format,
        "compression": form.compression,
        "sparse": form.sparse,
    }
    if form.format != "json+binref":
        return encode_body(result, **options)
    with BinrefWriter(config.output_path, run=run_name()) as writer:
        return encode_body(result, writer=writer, **options)


def plain_form(endpoint: str, form: Negotiated) -> Negotiated:
    """The form of an endpoint's answers: those that have no arrays are plain JSON in every JSON format."""
    has_arrays = endpoint not in ("abstract_eval", "test", *WITHOUT_ARRAYS)
    return form if has_arrays or not form.format.startswith("json") else Negotiated("json")


_MAX_ENTRIES = 1 << 16


class ResultCache:
    """What a component answered before.

    Args:
        component: whose settings say where, and how much.
    """

    def __init__(self, component: LocalComponent) -> None:
        config = component.config
        self._hash = component.content_hash
        self._memory: LRUCache[str, bytes] = LRUCache(
            _MAX_ENTRIES, max_bytes=config.max_cache_bytes, size_of=len
        )
        self._folder = None
        if config.cache_folder is not None:
            self._folder = SharedFolder(config.cache_folder, max_bytes=config.max_cache_bytes)

    @classmethod
    def of(cls, component: LocalComponent) -> ResultCache | None:
        """The cache of a component, if its settings ask for one."""
        wanted = component.config.cache
        return cls(component) if component.name in wanted or "*" in wanted else None

    def result(self, endpoint: str, payload: Any, compute: Callable[[], Any], run: Run) -> Any:
        """The result of a request, from here or computed. Failures are not kept."""
        # The hash of the component is part of the name: a folder that several servers share never gives an
        # answer of another version. A payload without a name (an object that cannot be hashed by content) is
        # computed.
        name = content_name(self._hash, endpoint, payload)
        if name is None:
            return compute()
        content = self._memory.get(name) if self._folder is None else self._folder.read(name)
        run.reuse["results_hit" if content is not None else "results_miss"] += 1
        if content is not None:
            return decode_body(content, media_type=FRAMES_MEDIA_TYPE, limits=TRUSTING_LIMITS)
        result = compute()
        # Kept as bytes, not as arrays: the author's arrays may be changed after this call, and each hit
        # decodes arrays of its own.
        content = b"".join(encode_body(result, format=FRAMES_MEDIA_TYPE))
        if self._folder is None:
            self._memory.put(name, content)
        else:
            self._folder.write(name, content)
        return result


# Asks that a forward pass be kept, in place of a token.
_KEEP = "keep"
_MAX_PASSES = 64


class ForwardPassGoneError(ChainruleError):
    """A call names a forward pass that its worker does not know (any more): HTTP 412. Nothing was run."""

    default_code = "forward_pass_gone"
    http_status = 412
    exit_code = 1


class KeptPasses:
    """The inputs of forward passes under tokens, so that a derivative need not bring them again.

        POST /apply                     Chainrule-Forward-Pass: keep        the inputs are in the body
        200                             Chainrule-Forward-Pass: <token>     of this pass, where it was kept
        POST /vector_jacobian_product   Chainrule-Forward-Pass: <token>     no `inputs` in the body
        412 forward_pass_gone           the token is not known here: send the call with its inputs

    A token is random and known to one worker process only: that of another server, or the replacement of this
    one, does not know it. A worker keeps a bounded number of passes and bytes, and forgets the one that was
    not used for longest. So a caller must expect the refusal at any time, and nothing has run then.

    The inputs are kept, and not only what the derivative makes of them: residuals are found by the content of
    the inputs (`runtime._residuals`). One call may evaluate the component at several points, as differences
    do, and what belongs to which point must not be taken from the token.

    Args:
        max_bytes: of all inputs together; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._inputs: LRUCache[str, Any] = LRUCache(
            _MAX_PASSES if max_bytes else 0, max_bytes=max_bytes, size_of=_size
        )
        self._max_bytes = max_bytes

    def inputs_to_keep(self, call: Call, payload: Mapping[str, Any]) -> Any:
        """A copy of the inputs of a forward pass that its caller wants to be kept; `None` of any other call.

        Made before the author's code runs, to which the inputs belong then.
        """
        is_wanted = call.endpoint == "apply" and call.forward_pass == _KEEP
        return own_copy(payload.get("inputs")) if is_wanted and self._max_bytes else None

    def keep(self, inputs: Any) -> str | None:
        """The token of a forward pass; `None` where its inputs are too large."""
        token = secrets.token_hex(16)
        self._inputs.put(token, inputs)
        return token if token in self._inputs else None

    def complete(self, call: Call, payload: dict[str, Any]) -> None:
        """Put the inputs into the request for a derivative that has a token in their place.

        Raises:
            ForwardPassGoneError: no such pass is known.
        """
        is_derivative = call.endpoint in DERIVATIVE_ENDPOINTS
        if not is_derivative or call.forward_pass is None or "inputs" in payload:
            return
        inputs = self._inputs.get(call.forward_pass)
        if inputs is None:
            raise ForwardPassGoneError(
                "This worker does not know the forward pass that Chainrule-Forward-Pass names. Send the call "
                "with its inputs."
            )
        payload["inputs"] = own_copy(inputs)  # the author may overwrite them


def _size(inputs: Any) -> int:
    return sum(_size_of_leaf(leaf) for _, leaf in iterate_leaves(inputs))


def _size_of_leaf(leaf: Any) -> int:
    return len(leaf) if isinstance(leaf, (str, bytes)) else getattr(leaf, "nbytes", 64)
