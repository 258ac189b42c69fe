"""Who may call, and which settings are refused at the start."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import subprocess

import psutil
import pytest

from chainrule.errors import DefinitionError, InputError, StorageError, TransportError
from chainrule.runtime import ComponentConfig
from chainrule.serve import ServeOptions, create_app, serve

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def guarded(start_server, tmp_path_factory):
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN + "\n")
    return start_server(workers=0, token_file=str(file))


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, f"Bearer{TOKEN}"]
)
def test_without_the_token(guarded, header):
    headers = {} if header is None else {"Authorization": header}
    for path in ("/openapi.json", "/docs", "/metrics", "/same-host"):
        assert guarded.get(path, headers).status == 401
    answer = guarded.apply(headers=headers)
    assert (answer.status, answer.problem["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    said = (
        "Component.from_url(url, token=…)" if header is None else "The token that was sent is not"
    )
    assert said in answer.problem["message"]


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example:8000"},
    {"Host": "[::1"},
    {"Host": "[::1].evil.example"},
    {"Host": "[127.0.0.1].evil.example:8000"},
    {"Host": "evil.example@localhost"},
    {"Host": "localhost/evil.example"},
    {"Origin": "http://[::1].evil.example"},
    {"Origin": "http://evil.example@localhost"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
]


@pytest.fixture(scope="module")
def open_server(start_server):
    """A server without a token."""
    return start_server(workers=0)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_pages_of_other_sites_cannot_call_a_server_without_a_token(open_server, headers):
    served = open_server
    answer = served.apply(headers=headers)
    assert (answer.status, answer.problem["code"]) == (403, "foreign_origin")
    assert served.get("/openapi.json", headers).status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1", "127.0.0.2:1", "[::1]:8000", "LocalHost"]
)
def test_programs_and_pages_of_this_machine_can(open_server, host):
    served = open_server
    assert served.apply(headers={"Host": host}).status == 200
    assert served.apply(headers={"Origin": f"http://{host}"}).status == 200


def test_who_says_insecure_checks_elsewhere(start_server):
    served = start_server(workers=0, insecure=True)
    assert served.apply(headers={"Host": "behind.example"}).status == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR "])
def test_with_the_token(guarded, scheme):
    headers = {"Authorization": f"{scheme} {TOKEN}"}
    assert guarded.apply(headers=headers).status == 200
    assert guarded.get("/openapi.json", headers).status == 200


def test_probes_need_no_token(guarded):
    assert guarded.get("/health").status == 200
    assert guarded.get("/ready").status == 200


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"host": "0.0.0.0"}, "unsafe_bind"),
        ({"host": "::"}, "unsafe_bind"),
        ({"host": "example.org"}, "unsafe_bind"),
        ({"host": "0.0.0.0", "insecure": True, "debug": True}, "unsafe_debug"),
    ],
)
def test_unsafe_settings(settings, code):
    with pytest.raises(DefinitionError) as caught:
        ServeOptions(**settings)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": -1},
        {"port": -1},
        {"port": 65_536},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"grace_s": float("inf")},
        {"grace_s": -1.0},
        {"startup_timeout_s": 0.0},
        {"max_queue": -1},
        {"max_connections": 0},
        {"tls_key": "key.pem"},
        {"tls_certificate": "there-is-no-such.pem"},
    ],
)
def test_settings_that_make_no_sense(settings, component_path):
    with pytest.raises(InputError) as caught:
        serve(component_path, **{"port": 0} | settings)
    assert caught.value.code == "bad_option"


def test_a_log_file_that_cannot_be_written(component_path, tmp_path):
    with pytest.raises(StorageError, match="log file"):
        serve(component_path, port=0, log_file=tmp_path)


def test_safe_settings():
    for host in ("127.0.0.1", "127.0.0.5", "::1", "localhost"):
        assert ServeOptions(host=host).token_file is None
    assert ServeOptions(host="0.0.0.0", insecure=True).host == "0.0.0.0"


def test_addresses_that_cannot_be_listened_on(component_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=r"Address already in use.*--port 0") as caught:
            serve(component_path, workers=0, port=port)
    assert caught.value.code == "address_in_use"
    for host in ("192.0.2.1", "there-is-no-such.invalid"):
        with pytest.raises(TransportError, match=f"Cannot listen on {host}:1: [A-Z]") as caught:
            serve(component_path, workers=0, host=host, port=1, insecure=True)
        assert caught.value.code == "bad_address"
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_tls(start_server, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
               "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
               "-out", str(certificate)]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl command that makes certificates")
    files = {"tls_certificate": str(certificate), "tls_key": str(key)}
    served = start_server(workers=0, max_connections=4, **files)
    assert served.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(certificate))
    with contextlib.ExitStack() as silent:
        for _ in range(60):  # callers that never begin the handshake give way
            silent.enter_context(socket.create_connection(served.netloc.split(":")))
        connection = http.client.HTTPSConnection(served.netloc, context=context, timeout=300)
        with contextlib.closing(connection):
            for _ in range(2):
                connection.request("GET", "/health")
                assert connection.getresponse().read() == b'{"status":"ok"}'
        assert len(psutil.Process(served.process.pid).net_connections()) <= 4 + 16 + 1
        served.stop()


def test_components_that_no_worker_can_be_given():
    with pytest.raises(DefinitionError) as caught:
        asyncio.run(_start(create_app(lambda x: x)))
    assert caught.value.code == "not_picklable"


def test_a_cache_for_a_component_that_is_not_served(component_path, caplog):
    config = ComponentConfig(cache=frozenset({"fault_componnet"}))
    app = create_app(component_path, options=ServeOptions(workers=0), config=config)
    asyncio.run(_start(app, stops=True))
    assert "served here are fault_component" in caplog.text


async def _start(app, *, stops=False):
    events = ["startup", "shutdown"]

    async def receive():
        return {"type": f"lifespan.{events.pop(0)}"}

    async def send(message):
        assert message["type"].endswith(".complete" if stops else ".startup.failed")

    await app({"type": "lifespan"}, receive, send)
