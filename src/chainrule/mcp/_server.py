"""The tools of components, their calls, and values as a language model reads and writes them.

Every component has a tool for `apply`, and one each for its gradient and its Jacobian where it has
derivatives. Author code runs in worker processes, as it does behind `chainrule serve`: a crash costs a
worker, a call that is cancelled is stopped, and what is printed goes to standard error. The protocol library
validates nothing; the component does.

Arrays are nested lists of numbers, scalars are numbers. Numbers that JSON does not have are the texts "NaN",
"Infinity" and "-Infinity", with a note beside the result. An array of more elements than the limit is written
to a file, and described by its shape, dtype and extremes; such a file can be given as an input.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import mcp_types as types
import numpy as np
from mcp.server import Server
from mcp.server.stdio import stdio_server

import chainrule
from chainrule._codec import FRAMES_MEDIA_TYPE, encode_body
from chainrule._describe import describe_value
from chainrule._errors import ChainruleError, InputError, NotGrantedError, StorageError
from chainrule._files import open_private, whole_file
from chainrule._trees import get_at_path, map_leaves
from chainrule.client.internal import Answer, read_answer
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


# --- values -------------------------------------------------------------------------------------

_MAX_DEPTH = 16
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NOTE = 'Numbers that JSON does not have are given as the texts "NaN", "Infinity" and "-Infinity".'


def plain_schema(node: Any, schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """A schema of a component without references, and with arrays as lists of numbers."""
    if isinstance(node, list):
        return [plain_schema(item, schemas, depth) for item in node]
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
        return node
    if "$ref" in node:
        return plain_schema(Document.resolve(node, schemas), schemas, depth + 1)
    if "array_flags" in node:
        return _array_schema(node)
    # `discriminator` maps to references, which are not there any more.
    kept = {key: value for key, value in node.items() if key not in ("discriminator", "title")}
    return {key: plain_schema(value, schemas, depth + 1) for key, value in kept.items()}


def _array_schema(node: Mapping[str, Any]) -> dict[str, Any]:
    shape = node["properties"]["shape"]
    rank = shape.get("maxItems")
    sizes = [
        each.get("const", (each.get("enum") or ["any"])[-1])
        for each in shape.get("prefixItems", ())
    ]
    names = node.get("array_dims") or [None] * len(sizes)
    shown = [str(name or size) for name, size in zip(names, sizes, strict=False)]
    facts = [
        node.get("description", ""),
        f"array of shape [{', '.join(shown)}]"
        if rank
        else ("number" if rank == 0 else "array of any shape"),
        f"in {node['array_units']}" if "array_units" in node else "",
        "differentiable" if "DIFFERENTIABLE" in node["array_flags"] else "",
    ]
    bounds = {word: node[word] for word in _BOUNDS if word in node}
    schema: dict[str, Any] = {"type": "number", **bounds}
    for _ in range(rank if rank is not None else 1):
        schema = {"type": "array", "items": schema}
    if rank is None:
        schema = {}
    if rank:
        file = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}
        schema = {"anyOf": [schema, file]}
    described = {"description": ", ".join(fact for fact in facts if fact)}
    return {**schema, **described, **({"default": node["default"]} if "default" in node else {})}


class Values:
    """Values on their way to and from a language model.

    Args:
        folder: of files for large arrays.
        max_elements: of an array that is written out.
    """

    def __init__(self, folder: Path, max_elements: int) -> None:
        self._folder = folder.resolve()
        self._max_elements = max_elements

    def read(self, tree: Any) -> Any:
        """Arguments with the arrays of files in place of their names.

        Raises:
            NotGrantedError: a file that is not one of this server's.
        """

        def read(node: Any) -> Any:
            return self._load(Path(str(node["file"]))) if _names_array(node) else node

        return map_leaves(read, tree, is_leaf=_names_array)

    def _load(self, path: Path) -> np.ndarray:
        if not self._has(path):
            raise NotGrantedError(
                f"{path.name[:_MAX_NAME]!r} is not a file that this server has written. Give the numbers, "
                "or a file of a result.",
                code="path_not_granted",
            )
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise StorageError(
                f"{path.name!r} is not an array in NumPy's format, or was changed. Compute the result again.",
                code="file_damaged",
            ) from error

    def _has(self, path: Path) -> bool:
        """Whether a file is one of the folder's."""
        try:
            # `resolve` follows links: one that leads out of the folder has another parent.
            return path.resolve().parent == self._folder and path.is_file()
        except (OSError, ValueError):  # no path at all
            return False

    def write(self, tree: Any) -> tuple[Any, bool]:
        """A result in JSON, and whether it has numbers that JSON does not have."""
        odd = False

        def write(leaf: Any) -> Any:
            nonlocal odd
            if isinstance(leaf, (np.ndarray, np.generic)):
                if leaf.size > self._max_elements:
                    return self._store(np.asarray(leaf))
                leaf = leaf.tolist()
            written, is_odd = _named(leaf)
            odd = odd or is_odd
            return written

        return map_leaves(write, tree, plain=True), odd

    def _store(self, array: np.ndarray) -> dict[str, Any]:
        path = self._folder / f"{uuid4().hex[:12]}.npy"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as temporary, open(temporary, "xb", opener=open_private) as file:
                np.save(file, array, allow_pickle=False)
        except OSError as error:
            raise StorageError(
                f"A result of {array.size} elements goes to a file, which cannot be written "
                f"({error.strerror or error}). Make room in the folder, or allow more elements in answers "
                "with --max-elements."
            ) from error
        facts: dict[str, Any] = {
            "file": str(path),
            "shape": list(array.shape),
            "dtype": array.dtype.name,
        }
        if array.dtype.kind in "iuf":
            facts |= {
                name: _named(getattr(array, name)().item())[0] for name in ("min", "max", "mean")
            }
        return facts


def _names_array(node: Any) -> bool:
    """Whether a node stands for an array in a file."""
    return isinstance(node, Mapping) and str(node.get("file", "")).endswith(".npy")


def _named(value: Any) -> tuple[Any, bool]:
    """A value, with names for numbers that JSON does not have; whether there were any."""
    if isinstance(value, list):
        parts = [_named(item) for item in value]
        return [part for part, _ in parts], any(is_odd for _, is_odd in parts)
    if isinstance(value, complex):
        (real, is_odd), (imag, is_also) = _named(value.real), _named(value.imag)
        return {"real": real, "imag": imag}, is_odd or is_also
    if isinstance(value, float) and not math.isfinite(value):
        return ("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"), True
    return value, False
