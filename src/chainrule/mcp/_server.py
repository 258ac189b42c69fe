"""The tools of components, and their calls in worker processes.

Every component has a tool for `apply`, and one each for its gradient and its Jacobian where it has
derivatives. Author code runs in worker processes, as it does behind `chainrule serve`: a crash costs a
worker, a call that is cancelled is stopped, and what is printed goes to standard error. The protocol library
validates nothing; the component does.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
import numpy as np
from mcp.server import Server
from mcp.server.stdio import stdio_server

import chainrule
from chainrule._codec import FRAMES_MEDIA_TYPE, encode_body
from chainrule._describe import describe_value
from chainrule._errors import ChainruleError, InputError
from chainrule._trees import get_at_path
from chainrule.client.internal import Answer, read_answer
from chainrule.mcp._values import NOTE, Values, plain_schema
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import Document
from chainrule.serve.internal import Call, ErrorStream, Facts, Pool, WorkerPool

_MAX_NAME = 64
_MAX_QUEUE = 64
_STARTUP_S = 300.0


def serve_stdio(
    components: Sequence[Any],
    *,
    workers: int = 1,
    timeout_s: float | None = None,
    folder: str | Path | None = None,
    max_elements: int = 10_000,
) -> None:
    """Offer components as tools over standard input and output, until the input ends.

    Args:
        components: sources of components, as in `chainrule.serve.serve`.
        workers: processes per component.
        timeout_s: stop a call that runs longer; `None` for no limit.
        folder: for arrays that are too large to write out; a temporary one by default.
        max_elements: of an array that is written out.
    """
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chainrule-mcp-"))
        values = Values(Path(folder), max_elements)
        try:
            asyncio.run(_run(components, workers, timeout_s, values))
        except* BrokenPipeError:  # the client reads no more: it has left
            pass


async def _run(
    components: Sequence[Any], workers: int, timeout_s: float | None, values: Values
) -> None:
    # Standard output belongs to the protocol from here on; what components print goes elsewhere.
    async with stdio_server() as (reading, writing), AsyncExitStack() as stack:
        tools: dict[str, Tool] = {}
        output = ErrorStream()
        for source in components:
            pool = WorkerPool(
                source,
                ComponentConfig(),
                workers=workers,
                timeout_s=timeout_s,
                max_queue=_MAX_QUEUE,
                startup_timeout_s=_STARTUP_S,
                output=output,
            )
            # Before the start: the processes of a component that cannot be loaded are ended too.
            stack.push_async_callback(pool.stop)
            component = _Tools(pool, await pool.start(), values, timeout_s, output)
            tools |= component.tools(tools)
        server = make_server(tools)
        await server.run(reading, writing, server.create_initialization_options())


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        description: what it does.
        schema: of its arguments.
        call: arguments and a function that is told of progress → the result, as nested data.
        values: how results are written.
    """

    description: str
    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any], Any], Any]
    values: Values


def make_server(tools: Mapping[str, Tool]) -> Server:
    """The server of the protocol for some tools."""

    async def list_tools(context: Any, params: Any) -> Any:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=tool.description, input_schema=dict(tool.schema))
                for name, tool in tools.items()
            ]
        )

    async def call_tool(context: Any, params: Any) -> Any:
        tool = tools.get(params.name)
        if tool is None:
            return _failed(
                "tool_unknown",
                f"There is no tool {params.name[:_MAX_NAME]!r}; there are {', '.join(tools)}.",
            )
        try:
            result = await tool.call(params.arguments or {}, context.session.report_progress)
            content, is_odd = tool.values.write(result)
        except ChainruleError as error:
            where = f" (at {error.path})" if error.path else ""
            return _failed(error.code, f"{error.message}{where}")
        text = json.dumps(content)
        texts = [text, NOTE] if is_odd else [text]
        parts = [types.TextContent(text=each) for each in texts]
        return types.CallToolResult(content=[*parts], structured_content=content)

    return Server(
        "chainrule", version=chainrule.__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _failed(code: str, message: str) -> Any:
    return types.CallToolResult(
        content=[types.TextContent(text=f"{message} [{code}]")], is_error=True
    )


class _Tools:
    """The tools of one component, and their calls."""

    def __init__(
        self, pool: Pool, facts: Facts, values: Values, timeout_s: float | None, output: ErrorStream
    ) -> None:
        self._pool = pool
        self._facts = facts
        self._values = values
        self._timeout_s = timeout_s
        self._output = output
        schemas = facts.openapi["components"]["schemas"]
        self._inputs = plain_schema(schemas["Apply_InputSchema"], schemas)

    def tools(self, taken: Mapping[str, Any]) -> dict[str, Tool]:
        """Name → tool; names that are taken get a number."""
        facts = self._facts
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", facts.name)[: _MAX_NAME - len("_999_gradient")]
        name, number = stem, 1
        while f"{name}_apply" in taken:
            number += 1
            name = f"{stem}_{number}"
        about = (facts.description or facts.name).strip()
        found = {
            "apply": Tool(
                f"{about}\n\nComputes the outputs for some inputs.",
                self._inputs,
                self.apply,
                self._values,
            )
        }
        if "value_and_vjp" in facts.endpoints:
            found["gradient"] = Tool(
                f"The outputs of {facts.name}, and the gradient of the sum of one output.",
                self.with_paths(several=False),
                self.gradient,
                self._values,
            )
        if "jacobian" in facts.endpoints:
            found["jacobian"] = Tool(
                f"The derivatives of outputs of {facts.name} with respect to inputs, as blocks.",
                self.with_paths(several=True),
                self.jacobian,
                self._values,
            )
        return {f"{name}_{kind}": tool for kind, tool in found.items()}

    def with_paths(self, *, several: bool) -> dict[str, Any]:
        """The arguments of a tool for derivatives."""
        path = {"type": "string", "description": "path of a differentiable output"}
        paths = {"type": "array", "items": {"type": "string"}}
        of: dict[str, Any] = (
            {**paths, "description": "paths of outputs; all by default"} if several else path
        )
        which = "all" if several else "those that are given"
        wrt = {
            **paths,
            "description": f"paths of inputs, such as x or wings.[0].chord; {which} by default",
        }
        return {
            "type": "object",
            "properties": {"inputs": self._inputs, "of": of, "wrt": wrt},
            "required": ["inputs"] if several else ["inputs", "of"],
            "additionalProperties": False,
        }

    async def apply(self, arguments: Mapping[str, Any], report: Any) -> Any:
        """The outputs."""
        return await self._ask("apply", {"inputs": self._values.read(arguments)}, report)

    async def gradient(self, arguments: Mapping[str, Any], report: Any) -> Any:
        """The outputs, and the gradient of one of them."""
        _check(arguments, ("inputs", "of"), ("wrt",))
        inputs = self._values.read(arguments["inputs"])
        of = arguments["of"]
        if not isinstance(of, str):
            raise InputError(
                f"Expected of to be the path of an output; found {describe_value(of)}.",
                code="bad_paths",
            )
        paths = self._paths_of(inputs) if arguments.get("wrt") is None else arguments["wrt"]
        outputs = await self._ask("apply", {"inputs": inputs}, report)
        try:
            ones = np.ones_like(np.asarray(get_at_path(outputs, of), float))
        except (TypeError, ValueError):  # text, or a part with several values
            raise InputError(
                f"{of!r} is not a differentiable array of this component.",
                code="path_not_differentiable",
            ) from None
        request = {"vjp_inputs": paths, "vjp_outputs": [of], "cotangent_vector": {of: ones}}
        return await self._ask("value_and_vjp", {"inputs": inputs, **request}, report)

    def _paths_of(self, inputs: Any) -> list[str]:
        """The differentiable inputs that are given."""
        document = Document(self._facts.openapi)
        paths = [leaf.path for leaf in document.leaves("inputs", inputs)]
        if not paths:
            raise InputError(
                "Expected wrt, because no differentiable input is given; there are "
                f"{', '.join(document.differentiable('inputs'))}.",
                code="bad_paths",
                path="wrt",
            )
        return paths

    async def jacobian(self, arguments: Mapping[str, Any], report: Any) -> Any:
        """The derivatives."""
        _check(arguments, ("inputs",), ("of", "wrt"))
        request = {
            key: arguments[name]
            for key, name in (("jac_outputs", "of"), ("jac_inputs", "wrt"))
            if arguments.get(name) is not None
        }
        inputs = self._values.read(arguments["inputs"])
        return await self._ask("jacobian", {"inputs": inputs, **request}, report)

    async def _ask(self, endpoint: str, payload: Mapping[str, Any], report: Any) -> Any:
        body = b"".join(encode_body(payload, format=FRAMES_MEDIA_TYPE, sparse=False))
        watcher = _Watcher(report, self._timeout_s, self._output)
        call = Call(
            endpoint,
            self._pool.placed(body),
            content_type=FRAMES_MEDIA_TYPE,
            accept=FRAMES_MEDIA_TYPE,
            watcher=watcher,
        )
        try:
            reply = await self._pool.call(call)
        finally:
            await watcher.finish()
        return read_answer(Answer(reply.status, reply.content_type, b"".join(reply.open())))


def _check(arguments: Mapping[str, Any], required: Sequence[str], optional: Sequence[str]) -> None:
    missing = [name for name in required if name not in arguments]
    unknown = [name for name in arguments if name not in (*required, *optional)]
    if missing or unknown:
        raise InputError(
            f"Expected the arguments {', '.join((*required, *optional))}; missing "
            f"{', '.join(missing) or 'none'}, unexpected {', '.join(unknown) or 'none'}.",
            code="bad_payload",
        )


class _Watcher:
    """Passes the progress of a call on, in order, and what the component prints."""

    def __init__(self, report: Any, timeout_s: float | None, output: ErrorStream) -> None:
        self.timeout_s = timeout_s
        self._report = report
        self.output = output  # what the component prints goes to standard error
        self._last: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        """Nothing to prepare."""

    def on_progress(self, fraction: float, message: str) -> None:
        """Send one report after the other."""
        if self._report is None:
            return
        # Tasks may finish sending in any order. Each waits for the one before, so that a bar never goes back.
        before = self._last

        async def send() -> None:
            if before is not None:
                await before
            await self._report(fraction, 1.0, message or None)

        self._last = asyncio.get_running_loop().create_task(send())

    async def finish(self) -> None:
        """Wait until all reports are sent: none may come after the result."""
        if self._last is not None:
            await asyncio.gather(self._last, return_exceptions=True)
