"""One page over several servers, in a real browser."""

from __future__ import annotations

import contextlib
import http.client
import json
from urllib.parse import urlsplit

import pytest

from chainrule import Component
from chainrule.cli import main
from chainrule.errors import InputError

TOKEN = "correct-horse-battery-staple"
UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def dashboard(running, url, guarded, token_file):
    tokens = ("--token-file", f"{guarded}={token_file}")
    with running("dashboard", url, guarded, UNREACHABLE, "--port", "0", *tokens) as address:
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


@pytest.mark.parametrize(("there", "missing"), [("common", "own"), ("own", "common")])
def test_token_files(there, missing, tmp_path, capfd):
    """One server has a file of its own, the other the common one: each of the two files is read."""
    (tmp_path / there).write_text("a-token-of-one-word")
    given = ["--token-file", tmp_path / "common", "--token-file", f"http://b={tmp_path / 'own'}"]
    with pytest.raises(SystemExit):
        main(["dashboard", "http://a", "http://b", *map(str, given)])
    assert str(tmp_path / missing) in capfd.readouterr().err


def test_a_token_of_a_server_that_is_not_shown(capfd):
    with pytest.raises(SystemExit):
        main(["dashboard", "http://a", "--token-file", "http://c=file"])
    assert "--token-file names http://c" in capfd.readouterr().err


def test_errors_of_now_and_of_before(open_page, running, wrong):
    with (
        running("serve", wrong, "--port", "0", "--workers", "0") as address,
        running("dashboard", address, "--port", "0") as dashboard,
    ):
        component = Component.from_url(address)
        for _ in range(2):
            with pytest.raises(InputError):
                component.apply({"x": "three"})
        page = open_page(f"{dashboard}/")
        since_start = page.get_by_role("row", name="errors, since its start")
        since_start.filter(has_text="2 of").wait_for()
        lately = page.get_by_role("row", name="errors, lately")
        assert "0 of" in lately.inner_text()
        with pytest.raises(InputError):
            component.apply({"x": "three"})
        lately.filter(has_text="1 of").wait_for()
        assert lately.locator(".bad").is_visible()
        since_start.filter(has_text="3 of").wait_for()
        component.close()
