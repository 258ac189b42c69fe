"""Pools on Ray: `ray_suite.py` and every test of a transport, on one cluster, in a network of its own.

With several network interfaces Ray's driver may not find nodes on loopback, and a cluster left over by
another user would be taken for ours. A network namespace with nothing but loopback settles both.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from chainrule import Component
from chainrule.errors import TransportError

HERE = Path(__file__).parent
SUITES = [HERE / "ray_suite.py", HERE.parent / "client" / "test_every_transport.py"]


def _namespace() -> list[str] | None:
    """The command that gives a process a network of its own; `None` where that is not allowed."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return None
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    works = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return [*command, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if works else None


@pytest.fixture
def short_folder():
    """Ray puts sockets there, whose paths must not be long."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_the_pool_on_a_cluster_of_three_nodes(tmp_path, short_folder):
    namespace = _namespace()
    if namespace is None:
        pytest.skip("no network namespaces here: unshare --net is not allowed")
    run = subprocess.run(
        [
            *[*namespace, sys.executable, "-m", "pytest", "-p", "ray_plugin", "-q", "-x"],
            "--show-capture=no",  # Ray's logs hide what failed
            *[
                "-p",
                "no:cacheprovider",
                "-k",
                "ray_suite or ray_pool",
                f"--basetemp={tmp_path / 'inner'}",
            ],
            *map(str, SUITES),
        ],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "RAY_"))},
            "CHAINRULE_RAY_SUITE": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": short_folder,
        },
        capture_output=True,
        text=True,
        timeout=1800,  # of what hangs; it takes 100 s on two cores
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens_is_found_out_at_once(scheme, monkeypatch):
    """Ray itself would try for minutes."""
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail("Ray was asked to connect"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(TransportError, match=re.escape(address)) as caught:
        Component.from_cluster("pool", address=address)
    assert caught.value.code == "cluster_unreachable"
