"""`--debug-port`: a debugger attaches, by the protocol that editors speak (DAP)."""

import contextlib
import json
import socket
import subprocess
import sys

import pytest

pytest.importorskip("debugpy")

DOUBLE = """
def apply(x: float) -> float:
    return 2 * x
"""


class Editor:
    """A client of the Debug Adapter Protocol: JSON messages with a `Content-Length`."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=300)
        self._stream = self._socket.makefile("rb")
        self._number = 0

    def ask(self, command, **arguments):
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command}
        body = json.dumps({**message, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def wait_for(self, name):
        """The next event of this name, or the answer to this command."""
        while True:
            length = int(self._stream.readline().partition(b":")[2])
            self._stream.readline()
            message = json.loads(self._stream.read(length))
            if name in (message.get("event"), message.get("command")):
                return message

    def close(self):
        self._stream.close()
        self._socket.close()


def start(*arguments):
    """A command in a process of its own, and the port on which it says that it accepts a debugger."""
    command = subprocess.Popen(
        [sys.executable, "-m", "chainrule", *arguments, "--debug-port", "0"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in command.stderr:
        if "Debugger listening on 127.0.0.1:" in line:
            return command, int(line.rpartition(":")[2])
    raise AssertionError(f"no debugger is accepted; exit code {command.wait(300)}")


def test_a_call_begins_when_a_debugger_has_attached(tmp_path):
    file = tmp_path / "double.py"
    file.write_text(DOUBLE)
    command, port = start("apply", f"{file}:apply", '{"inputs": {"x": 3.0}}')
    with command, contextlib.closing(Editor(port)) as editor:
        editor.ask("initialize", adapterID="test")
        assert editor.wait_for("initialize")["success"]
        assert command.poll() is None
        editor.ask("attach", justMyCode=True)
        editor.wait_for("initialized")
        editor.ask("configurationDone")
        editor.wait_for("terminated")
        editor.ask("disconnect")
        out, _ = command.communicate(timeout=300)
    assert json.loads(out) == {"result": 6.0}
