"""One component behind every transport."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chainrule.client import Component

SOURCE = Path(__file__).with_name("some_component.py")

_SERVE = """
import sys
from chainrule.serve import serve
serve(sys.argv[1], port=0, workers=int(sys.argv[2]), grace_s=1, same_host=sys.argv[3] == "True",
      token_file=sys.argv[4] or None, on_ready=lambda url: print(url, flush=True))
"""


@contextlib.contextmanager
def served(*, workers: int = 0, same_host: bool = False, token_file: str = "") -> Iterator[str]:
    """The URL of a server in a process of its own."""
    arguments = [str(SOURCE), str(workers), str(same_host), token_file]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture
def start_server():
    return served


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with served(workers=1, same_host=True) as url:
        yield url


@pytest.fixture(scope="session", params=["in_process", "own_process", "http", "same_host"])
def component(request: pytest.FixtureRequest) -> Iterator[Component]:
    if request.param == "in_process":
        made = Component.from_api(SOURCE)
    elif request.param == "own_process":
        made = Component.from_source(SOURCE)
    else:
        url = request.getfixturevalue("server")
        shared = request.param == "same_host"
        # The first component of a server is also served at the root.
        url = f"{url}/c/some_component" if shared else url
        made = Component.from_url(url, share_memory=shared, timeout=60)
    with made:
        yield made
