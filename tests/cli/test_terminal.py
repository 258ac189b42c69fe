"""What people see: commands on a terminal of 80 columns, and the same commands in a pipe."""

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

COMPONENT = """
import numpy as np
from pydantic import BaseModel, Field
from chainrule.runtime import Array, Differentiable, Float64

class InputSchema(BaseModel):
    stiffness: Differentiable[Float64] = Field(2.0, description="Of the spring, measured with care " * 3)
    a_field_whose_name_is_as_long_as_a_sentence: float = 1.0
    x: Differentiable[Array[("n",), Float64, "m"]] = [1.0, 2.0]

class OutputSchema(BaseModel):
    force: Differentiable[Array[("n",), Float64, "N"]]
    field: Array[(20, 20), Float64]

def apply(inputs):
    if inputs.x[0] < 0:
        return {}["modulus"]
    return OutputSchema(force=inputs.stiffness * inputs.x, field=np.ones((20, 20)))

def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    c = cotangent_vector["force"]
    found = {"stiffness": 2 * np.sum(c * inputs.x), "x": inputs.stiffness * c}
    return {path: found[path] for path in vjp_inputs}
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def component(tmp_path_factory):
    file = tmp_path_factory.mktemp("terminal") / "spring.py"
    file.write_text(COMPONENT)
    return file


class Terminal:
    """A command whose streams are a terminal of 80 columns."""

    def __init__(self, *words, **variables):
        self.own, other = pty.openpty()
        ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chainrule", *map(str, words)],
            stdin=other, stdout=other, stderr=other, start_new_session=True,
            env={**environment, "TERM": "xterm", **variables},
        )  # fmt: skip
        os.close(other)
        self.seen = b""

    def read(self):
        """More of what is on the screen; nothing when the command has ended."""
        try:
            piece = os.read(self.own, 65536)
        except OSError:  # Linux says so when the other side is closed
            piece = b""
        self.seen += piece
        return piece

    def read_until(self, text):
        while text not in self.text:
            assert self.read(), self.text
        return self.text

    def press(self, keys):
        os.write(self.own, keys)

    def end(self):
        while self.read():
            pass
        code = self.process.wait(300)
        os.close(self.own)
        return code, self.text

    @property
    def text(self):
        return self.seen.decode(errors="replace").replace("\r\n", "\n")


def on_terminal(*words, **variables):
    return Terminal(*words, **variables).end()


def plain(text):
    return ESCAPES.sub("", text)


def fits(text):
    return max(len(line) for line in plain(text).splitlines()) <= 80


def test_apply_is_a_table_on_a_terminal_and_json_in_a_pipe(component):
    code, text = on_terminal("apply", component)
    assert code == 0
    lines = plain(text).splitlines()
    assert any(line.split() == ["force", "f64[2]", "[2.,", "4.]", "N"] for line in lines)
    assert "min 1 · mean 1 · max 1" in plain(text)
    assert fits(text)
    piped = subprocess.run(
        [sys.executable, "-m", "chainrule", "apply", component], capture_output=True, check=True
    )
    assert json.loads(piped.stdout)["force"]["data"]["buffer"] == [2.0, 4.0]
    assert b"\x1b" not in piped.stdout + piped.stderr
    code, text = on_terminal("apply", component, "-f", "json")
    assert json.loads(text)["force"]["data"]["buffer"] == [2.0, 4.0]


def test_texts_are_whole_and_only_units_that_exist_have_a_column(tmp_path):
    said = "converged after " + 12 * "many iterations and " + "one more"
    (tmp_path / "said.py").write_text(f"""
from chainrule import component

@component
def said(x: float) -> dict[str, str]:
    return {{"text": {said!r}}}
""")
    code, text = on_terminal("apply", tmp_path / "said.py", "--set", "x=1.0")
    assert code == 0
    assert fits(text)
    # Cells are broken at words.
    assert " ".join(plain(text).split()).count("many iterations and") >= 8
    assert "…" not in text
    assert "one more" in " ".join(plain(text).split())
    assert "units" not in text


def test_the_verdict_comes_first_and_in_red(component):
    code, text = on_terminal("check-gradients", component)
    assert code == 1
    first = text.splitlines()[0]
    assert first.startswith("\x1b[1;31mcheck-gradients: ")
    assert re.search(r"\d of \d endpoints FAILED: vector_jacobian_product", plain(text))
    assert "`stiffness` are" in plain(text)
    assert fits(text)
    _, text = on_terminal("check-gradients", component, NO_COLOR="1")
    assert "\x1b" not in text


def test_tables_and_help_fit_and_nothing_is_cut(component):
    _, text = on_terminal("inspect", component)
    assert fits(text)
    assert "\x1b[1m" in text
    assert re.sub(r"\s", "", plain(text)).count("measuredwithcare") == 3
    assert "…" not in text
    for words in (["--help"], ["serve", "--help"], ["apply", "--help"]):
        _, text = on_terminal(*words)
        assert fits(text), words
        assert "\x1b[1m" in text


def test_errors_name_the_line_of_the_author_and_debug_gives_the_traceback(component):
    line = 1 + COMPONENT.splitlines().index('        return {}["modulus"]')
    code, text = on_terminal("apply", component, "--set", "x=[-1.0]")
    assert code == 1
    assert f"spring.py:{line} (apply)" in text.replace("\n", "")
    assert "Traceback" not in text
    assert text.startswith("\x1b[1;31mError:\x1b[0m")
    code, text = on_terminal("check-gradients", component, "--set", "x=[-1.0]", "--debug")
    assert code == 1
    assert f"spring.py:{line}" in plain(text).replace("\n", "")
    code, text = on_terminal("apply", component, "--set", "x=[-1.0]", "--debug")
    assert 'return {}["modulus"]' in text
    assert "Traceback" in text


def test_typos_in_names_of_fields(component):
    code, text = on_terminal("apply", component, "--set", "stifness=3")
    assert code == 2
    assert "did you mean 'stiffness'?" in text


def test_serve_says_where_its_page_is_logs_failures_and_top_ends_with_q(component):
    server = Terminal("serve", component, "--port", "0", "--workers", "0")
    url = plain(server.read_until("Ctrl-C")).split("Serving at ")[1].split()[0]
    assert f"Page: {url}/" in plain(server.text)
    code, text = on_terminal("apply", url, "--set", "x=[-1.0]")
    assert code == 1
    assert "spring.py:" in text
    server.read_until("apply raised KeyError: 'modulus' at ")
    code, text = on_terminal("job", "list", url)
    assert code == 0
    assert fits(text)
    top = Terminal("top", url, "--every", "0.05")
    top.read_until("q ends this")
    top.read_until("requests lately")
    top.press(b"q")
    assert top.end()[0] == 0
    server.process.send_signal(signal.SIGTERM)
    server.end()


def test_reload_starts_the_server_again(tmp_path):
    file = tmp_path / "spring.py"
    file.write_text(COMPONENT)
    server = Terminal("serve", file, "--port", "0", "--workers", "0", "--reload")
    server.read_until("Ctrl-C")
    file.write_text("this is not Python")
    server.read_until("starting again")
    server.read_until("module_failed")
    server.seen = b""
    file.write_text(COMPONENT + "\n")
    server.read_until("Ctrl-C")
    server.process.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0


def test_init_says_what_to_do_next(tmp_path):
    code, text = on_terminal("init", tmp_path / "scale")
    assert code == 0
    commands = [line.split("  ")[1] for line in text.splitlines() if line.startswith("  chainrule")]
    assert [command.split()[1] for command in commands] == ["check", "inspect", "serve"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, tmp_path):
    script = tmp_path / "script"
    done = subprocess.run(
        [sys.executable, "-m", "chainrule", "completion", shell], capture_output=True, check=True
    )
    script.write_bytes(done.stdout)
    assert b"--set" in done.stdout or b"-l set" in done.stdout
    if shell != "bash":
        return
    ask = f"""source {script}
complete_words() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _chainrule; echo "${{COMPREPLY[@]}}"; }}
complete_words chainrule ap
complete_words chainrule job c
complete_words chainrule apply x.py --out
complete_words chainrule image build --ta
"""
    out = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [
        "apply",
        "cancel",
        "--output-file --output-format --output-path",
        "--tag",
    ]
