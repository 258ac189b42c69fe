"""A real browser on a real server. Screenshots of every test are left in test-artifacts/."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ARTIFACTS = HERE.parents[1] / "test-artifacts"
BEAM = HERE / "beam_component.py"
ZOO = HERE / "zoo_component.py"
DEFAULTS = HERE / "defaults_component.py"
PLATE = HERE / "plate_component.py"
TOKEN = "correct-horse-battery-staple"
FLAGS = (
    "--headless --no-sandbox --disable-quic --no-first-run "
    "--use-angle=swiftshader --enable-unsafe-swiftshader "  # WebGL without a GPU
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


@contextlib.contextmanager
def running(*command):
    """A `chainrule` command that says where it listens; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chainrule", *map(str, command)], stderr=subprocess.PIPE, text=True
    )
    try:
        lines = iter(process.stderr.readline, "")
        yield next(line.split(" at ")[1].split()[0] for line in lines if " at http" in line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stderr.close()


@pytest.fixture(scope="session")
def artifacts():
    """The folder of screenshots."""
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS


@pytest.fixture(scope="session", name="running")
def running_fixture():
    return running


@pytest.fixture(scope="module")  # while it is there, its event loop runs in this thread
def browser(tmp_path_factory):
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = os.environ.get("CHAINRULE_CHROMIUM") or shutil.which("chromium")
    if executable is None:
        pytest.skip("there is no chromium here")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def wrong(tmp_path_factory):
    """A component whose derivative is off by a factor of two."""
    path = tmp_path_factory.mktemp("wrong") / "wrong.py"
    path.write_text(
        "from pydantic import BaseModel\n"
        "from chainrule.runtime import Array, Differentiable, Float64\n\n"
        "class InputSchema(BaseModel):\n"
        "    x: Differentiable[Array[('n',), Float64]]\n\n"
        "class OutputSchema(BaseModel):\n"
        "    y: Differentiable[Array[('n',), Float64]]\n\n"
        "def apply(inputs: InputSchema) -> OutputSchema:\n"
        "    if inputs.x.size == 0:\n"
        "        raise ValueError('there is nothing to cube')\n"
        "    return OutputSchema(y=inputs.x**3)\n\n"
        "def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):\n"
        "    return {'x': 6 * inputs.x**2 * cotangent_vector['y']}\n"
    )
    return path


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Options that grant folders, and let callers put 1000 bytes there."""
    inputs, outputs = tmp_path_factory.mktemp("in"), tmp_path_factory.mktemp("out")
    return "--input-path", inputs, "--output-path", outputs, "--max-upload-bytes", "1000"


@pytest.fixture(scope="session")
def url(wrong, folders):
    sources = (BEAM, wrong, ZOO, DEFAULTS, PLATE)
    with running("serve", *sources, "--port", "0", *folders) as address:
        yield address


@pytest.fixture(scope="session")
def token_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN)
    return path


@pytest.fixture(scope="session")
def guarded(wrong, token_file):
    """The address of a server that asks for a token."""
    options = ("--port", "0", "--workers", "0", "--token-file", token_file)
    with running("serve", wrong, *options) as address:
        yield address


@pytest.fixture
def open_page(browser, request, artifacts):
    """Opens an address; complaints of the browser fail the test."""
    context = browser.new_context(viewport={"width": 1360, "height": 1000})
    context.set_default_timeout(10_000)
    complaints = []

    def open_one(address):
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if "Refused" in message.text
                or "Content Security" in message.text else None)  # fmt: skip
        page.goto(address)
        return page

    yield open_one
    for number, page in enumerate(context.pages):
        page.screenshot(path=artifacts / f"{request.node.name}-{number}.png", full_page=True)
    context.close()
    assert complaints == []


# Scripts act on a change of the page in the next frame, and colours change over some milliseconds: axe would
# see what no reader looks at.
SETTLED = """new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))
  .then(() => Promise.allSettled(document.getAnimations()
    .filter(each => each.effect.getComputedTiming().endTime < Infinity).map(each => each.finished)))"""


@pytest.fixture(scope="session")
def find_faults():
    """Lists what is wrong with a page as it is now: it is too wide, or axe finds violations of WCAG."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed")
    check = (files(axe) / "axe.min.js").read_text()

    def find(page, *, contrast=True):
        page.evaluate(SETTLED)
        is_within = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.evaluate(check)
        rules = {"color-contrast": {"enabled": contrast}}
        found = page.evaluate(
            "async (options) => (await axe.run(options)).violations",
            # no rule that is on needs style sheets or media, which axe would fetch again
            {"rules": rules, "resultTypes": ["violations"], "preload": False},
        )
        faults = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
        return faults if is_within else [("wider than the screen", []), *faults]

    return find


def listen(page, address, wrong, status=None):
    """Append to `wrong` what a page complains about, and what it asks of others than `address`.

    Chromium writes a line to the console for every answer that is no success: `status` may come.
    """

    def hear(message):
        is_expected = f"the server responded with a status of {status} " in message.text
        if message.type in ("error", "warning") and not is_expected:
            wrong.append(message.text)

    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", hear)
    origin = address if address.startswith("file:") else "/".join(address.split("/")[:3])
    page.on("request", lambda r: None if r.url.startswith((origin, "data:", "about:"))
            else wrong.append(r.url))  # fmt: skip


@pytest.fixture(scope="session", name="listen")
def listen_fixture():
    return listen


@pytest.fixture
def look(browser, request, artifacts, find_faults):
    """Opens an address at a width, light or dark. Errors, requests elsewhere and what axe finds fail."""
    contexts, wrong = [], []

    def open_one(address, width=1280, scheme="light", status=None):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(10_000)
        contexts.append((context, f"{width}-{scheme}"))
        page = context.new_page()
        listen(page, address, wrong, status)
        page.goto(address)
        return page

    def examine(page, name):
        """Look at a page as it is now."""
        page.screenshot(path=artifacts / f"{request.node.name}-{name}.png", full_page=True)
        wrong.extend((name, *fault) for fault in find_faults(page))

    open_one.examine = examine
    yield open_one
    for context, name in contexts:
        for page in context.pages:
            examine(page, name)
        context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def serve_folder():
    """Serves the files of a folder; its address."""
    servers = []

    def serve(path):
        handler = functools.partial(_Quiet, directory=path)
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        """Say nothing about a request."""


@pytest.fixture
def page(open_page, url):
    """The page of the beam, ready to be used."""
    page = open_page(f"{url}/")
    page.get_by_role("button", name="Run").wait_for()
    return page
