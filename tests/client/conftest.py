"""One component behind every transport."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chainrule.client import Component
from chainrule.deploy import local

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
        process.wait(300)
        process.stdout.close()


@pytest.fixture
def start_server():
    return served


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with served(workers=1, same_host=True) as url:
        yield url


TRANSPORTS = ["in_process", "own_process", "http", "same_host", "local_pool"]
# A cluster needs a network of its own: see tests/deploy/test_ray.py.
if "CHAINRULE_RAY_SUITE" in os.environ:
    TRANSPORTS.append("ray_pool")


@pytest.fixture(scope="session", params=TRANSPORTS)
def component(request: pytest.FixtureRequest) -> Iterator[Component]:
    if request.param == "in_process":
        made = Component.from_api(SOURCE)
    elif request.param == "own_process":
        made = Component.from_source(SOURCE)
    elif request.param == "local_pool":
        made = local.deploy(SOURCE, replicas=2)
    elif request.param == "ray_pool":
        request.getfixturevalue("ray_cluster")
        from chainrule.deploy import ray as pools

        made = pools.deploy(SOURCE, replicas=2)
    else:
        url = request.getfixturevalue("server")
        shared = request.param == "same_host"
        # The first component of a server is also served at the root.
        url = f"{url}/c/some_component" if shared else url
        made = Component.from_url(url, share_memory=shared, timeout=300)
    with made:
        yield made
