"""The MCP server over a real pipe, with the real client."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mcp_types")  # of version 2 of the protocol's package

from anyio.from_thread import start_blocking_portal

from chainrule.mcp._values import Values
from mcp import Client, StdioServerParameters

COMPONENT = str(Path(__file__).parent / "tool_component.py")
LINE = """
from chainrule.runtime import Differentiable, Float64, component

@component(derivatives="finite")
def line(a: Differentiable[Float64] = 2.0) -> Differentiable[Float64]:
    return 3 * a
"""
X = {"x": [1.0, 3.0]}


def server(*sources):
    arguments = ["-m", "chainrule", "mcp", *sources, "--max-elements", "20"]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Calls a method of one client of all these tests, and waits for what it gives."""
    line = tmp_path_factory.mktemp("mcp") / "line.py"
    line.write_text(LINE)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server(COMPONENT, str(line)))) as c,
    ):
        yield lambda method, *arguments: portal.call(getattr(c, method), *arguments)


@pytest.fixture(scope="module")
def call(client):
    """Calls a tool."""
    return lambda tool, arguments: client("call_tool", tool, arguments)


def texts(result):
    return [part.text for part in result.content]


def test_tools_values_and_bad_input(client, call):
    tools = {tool.name: tool for tool in client("list_tools").tools}
    assert list(tools) == [
        f"{name}_{what}"
        for name in ("tool_component", "line")
        for what in ("apply", "gradient", "jacobian")
    ]
    schema = tools["tool_component_apply"].input_schema
    x = schema["properties"]["x"]
    assert x["anyOf"][0] == {"type": "array", "items": {"type": "number", "minimum": 0}}
    assert x["description"] == "positions, array of shape [n], in m, differentiable"
    assert schema["required"] == ["x"]
    assert schema["properties"]["scale"]["default"] == 2.0
    assert "Heat in a rod." in tools["tool_component_apply"].description

    plain = call("tool_component_apply", X)
    assert plain.structured_content == {"y": [2.0, 18.0]}
    assert json.loads(texts(plain)[0]) == {"y": [2.0, 18.0]}
    slope = call("tool_component_gradient", {"inputs": X, "of": "y"})
    assert slope.structured_content["gradient"] == {"x": [4.0, 12.0]}
    both = {"inputs": {**X, "scale": 1.0}, "of": "y", "wrt": ["scale"]}
    assert call("tool_component_gradient", both).structured_content["gradient"] == {"scale": 10.0}
    blocks = call("tool_component_jacobian", {"inputs": X, "wrt": ["x"]})
    assert blocks.structured_content == {"y": {"x": [[4.0, 0.0], [0.0, 12.0]]}}

    for arguments, words in (
        ({"x": [[1.0]]}, "f64[n]"),
        ({"x": [1.0, -1.0]}, "element [1] is smaller"),
        ({"y": 1}, "x"),
        ({**X, "zz": 1}, "zz"),
        ({**X, "mode": "fail"}, "no convergence"),
        ({"x": {"file": "/etc/passwd.npy"}}, "not a file that this server has written"),
    ):
        refused = call("tool_component_apply", arguments)
        assert refused.is_error
        assert words in texts(refused)[0]
        assert "Traceback" not in texts(refused)[0]
    unknown = call("tool_component_gradient", {"inputs": X, "off": "y"})
    assert "missing of, unexpected off" in texts(unknown)[0]
    assert call("nonsense", {}).is_error
    wrong = call("tool_component_gradient", {"inputs": X, "of": "yy"})
    assert "yy" in texts(wrong)[0]


def test_complex_numbers_that_json_does_not_have(tmp_path):
    written, is_odd = Values(tmp_path, 10).write({"z": np.array([complex(np.nan, np.inf), 1j])})
    assert written == {"z": [{"real": "NaN", "imag": "Infinity"}, {"real": 0.0, "imag": 1.0}]}
    assert is_odd
    assert not Values(tmp_path, 10).write({"z": np.array([1j])})[1]


def test_nan_large_arrays_and_crashes(call):
    odd = call("tool_component_apply", {**X, "mode": "nan"})
    assert odd.structured_content == {"y": ["NaN", "NaN"]}
    assert "JSON does not have" in texts(odd)[1]
    large = call("tool_component_apply", {**X, "mode": "large"}).structured_content["y"]
    assert (large["shape"], large["max"]) == ([50], 49.0)
    np.testing.assert_array_equal(np.load(large["file"]), np.arange(50.0))
    again = call("tool_component_gradient", {"inputs": {"x": {"file": large["file"]}}, "of": "y"})
    assert again.structured_content["gradient"]["x"]["max"] == 4 * 49.0
    crashed = call("tool_component_apply", {**X, "mode": "crash"})
    assert crashed.is_error
    assert "worker_crashed" in texts(crashed)[0]
    assert call("tool_component_apply", X).structured_content == {"y": [2.0, 18.0]}


def test_progress_and_cancellation():
    async def work(c):
        heard = []

        async def hear(fraction, total, message):
            heard.append((round(fraction, 2), message))

        await c.call_tool("tool_component_apply", {**X, "mode": "progress"}, progress_callback=hear)
        assert heard == sorted(heard)
        assert heard[0] == (0.0, "step 0")
        assert len(heard) >= 2

        began = asyncio.Event()

        async def notice(fraction, total, message):
            began.set()

        hanging = asyncio.create_task(
            c.call_tool("tool_component_apply", {**X, "mode": "hang"}, progress_callback=notice)
        )
        await began.wait()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        # A client that stops waiting stops the work, too.
        with pytest.raises(Exception, match=r"[Tt]imed out"):
            await c.call_tool(
                "tool_component_apply", {**X, "mode": "hang"}, read_timeout_seconds=0.5
            )
        # There is one worker: it answers because the work was stopped.
        assert (await c.call_tool("tool_component_apply", X)).structured_content == {
            "y": [2.0, 18.0]
        }

    async def run():
        async with Client(server(COMPONENT), mode="legacy") as c:
            await work(c)

    asyncio.run(run())


def test_files_are_private_and_checked(call):
    large = call("tool_component_apply", {"x": list(range(50))})
    path = Path(large.structured_content["y"]["file"])
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:50])
    for name, code in (
        (str(path), "file_damaged"),
        ("a\0b.npy", "path_not_granted"),
        ("a" * 100_000 + ".npy", "path_not_granted"),
        ("../x.npy", "path_not_granted"),
    ):
        refused = call("tool_component_apply", {"x": {"file": name}})
        assert refused.is_error
        assert f"[{code}]" in texts(refused)[0]
        assert len(texts(refused)[0]) < 300
    unknown = call("a" * 100_000, {})
    assert len(texts(unknown)[0]) < 300
    kept = path.parent.rename(path.parent.with_suffix(".kept"))
    path.parent.write_bytes(b"in the way of a folder")
    failed = call("tool_component_apply", {"x": list(range(50))})
    assert "[storage_failed]" in texts(failed)[0]
    path.parent.unlink()
    kept.rename(path.parent)


def test_gradients_of_what_is_no_output(call):
    for of in (5, None, ["y"], "", "nothing", "y.[0]", {"y": 1}):
        refused = call("tool_component_gradient", {"inputs": X, "of": of})
        assert refused.is_error
        codes = ("[bad_paths]", "[path_unknown]", "[path_not_differentiable]")
        assert texts(refused)[0].endswith(codes)


def test_what_a_component_prints_cannot_control_the_terminal():
    command = [sys.executable, "-m", "chainrule", "mcp", COMPONENT]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    start = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    call = {"name": "tool_component_apply", "arguments": {**X, "mode": "rude"}}
    with subprocess.Popen(command, **pipes) as server:
        for number, (method, params) in enumerate((("initialize", start), ("tools/call", call))):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            server.stdin.write(json.dumps(request).encode() + b"\n")
            server.stdin.flush()
            assert b"result" in server.stdout.readline()
        server.stdin.close()
        said = server.stderr.read()
    assert b"\\x1b[2J" in said
    assert b"\x1b" not in said


def test_a_client_that_leaves_without_a_word():
    command = [sys.executable, "-m", "chainrule", "mcp", COMPONENT]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as server:
        server.stdout.close()
        server.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        server.stdin.close()
        assert b"Traceback" not in server.stderr.read()
        assert server.wait() == 0


def test_a_component_whose_inputs_have_defaults(call):
    none = call("line_gradient", {"inputs": {}, "of": "result"})
    assert none.is_error
    assert "Expected wrt" in texts(none)[0]
    assert "there are a." in texts(none)[0]
    found = call("line_gradient", {"inputs": {}, "of": "result", "wrt": ["a"]})
    assert found.structured_content["gradient"]["a"] == pytest.approx(3.0)


def test_components_of_one_name_get_numbers(tmp_path):
    """The names of tools have at most 64 characters, and differ."""
    name = "a_component_with_a_name_that_is_longer_than_most_clients_can_show"
    sources = []
    for number in range(3):
        sources.append(str(tmp_path / f"part_{number}.py"))
        Path(sources[-1]).write_text(
            LINE.replace('derivatives="finite"', f'derivatives="finite", name="{name}"')
        )

    async def names():
        async with Client(server(*sources)) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    found = asyncio.run(names())
    assert [each.rpartition("_")[2] for each in found] == ["apply", "gradient", "jacobian"] * 3
    assert [each for each in found if len(each) > 64] == []
    stems = [each.removesuffix("_apply") for each in found if each.endswith("_apply")]
    assert stems == [stems[0], f"{stems[0]}_2", f"{stems[0]}_3"]
