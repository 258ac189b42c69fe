"""One page over several servers, in a real browser."""

from __future__ import annotations

import contextlib
import http.client
import json
from urllib.parse import urlsplit

import pytest

from chainrule._errors import InputError
from chainrule.cli._dashboard import _token_files

TOKEN = "correct-horse-battery-staple"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def dashboard(running, url, wrong, tmp_path_factory):
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN)
    with running("serve", wrong, "--port", "0", "--workers", "0", "--token-file", token) as guarded:
        tokens = ("--token-file", f"{guarded}={token}")
        with running("dashboard", url, guarded, NOBODY, "--port", "0", *tokens) as address:
            yield address


def ask(address, host=None):
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/servers", headers={} if host is None else {"Host": host})
        response = connection.getresponse()
        return response.status, response.read()


def test_health_of_all(open_page, dashboard):
    scripts = []
    page = open_page("about:blank")
    page.on("request", lambda r: scripts.append(r.url) if r.resource_type == "script" else None)
    page.goto(f"{dashboard}/")
    page.get_by_text("2 of 3 answer").wait_for()
    assert sorted(page.locator(".state").all_inner_texts()) == ["down", "ok", "ok"]
    assert "[unreachable]" in page.locator(".card.down").inner_text()
    first = page.locator(".card").first
    assert "beam_component" in first.inner_text()
    for word in ("requests / s", "latency p90, p99", "errors", "queue", "workers busy"):
        assert word in first.inner_text()
    assert scripts == [f"{dashboard}/_page/dashboard.js"]


def test_what_the_browser_gets_has_no_token(dashboard):
    status, body = ask(dashboard)
    assert status == 200
    servers = json.loads(body)["servers"]
    assert [server["error"] is None for server in servers] == [True, True, False]
    assert TOKEN.encode() not in body


def test_other_names_for_this_machine_are_refused(dashboard):
    assert ask(dashboard, host="attacker.example")[0] == 400


def test_token_files():
    files = _token_files(["http://a", "http://b"], ["common", "http://b=own"])
    assert {url: str(file) for url, file in files.items()} == {
        "http://a": "common",
        "http://b": "own",
    }
    with pytest.raises(InputError, match="http://c"):
        _token_files(["http://a"], ["http://c=file"])
