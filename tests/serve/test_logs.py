"""Logs for machines: one object per line, with the run id, without payloads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from chainrule.client import Component
from chainrule.serve._logs import AccessLog
from chainrule.serve.internal import ErrorStream

HERE = Path(__file__).parent
SECRET = 98765.4321


def serve(tmp_path, workers):
    log = tmp_path / "workers.log"
    settings = {
        "components": f"{HERE / 'pipeline_component.py'}:link", "port": 0, "workers": workers,
        "access_log": True, "log_format": "json", "log_file": str(log),
    }  # fmt: skip
    code = (
        "import logging, sys; from chainrule.runtime.internal import log_handler; "
        "logging.basicConfig(level=logging.INFO, handlers=[log_handler('json')]); "
        "import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(HERE / "run_server.py"), json.dumps(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip(), log


@pytest.mark.parametrize("workers", [0, 1])
def test_every_line_is_an_object_with_its_run(tmp_path, workers):
    process, url, log = serve(tmp_path, workers)
    with process, Component.from_url(url, share_memory=False) as component:
        component.apply({"x": SECRET, "rest": []}, run_id="mine")
        component.apply({"x": SECRET, "rest": []})
        process.terminate()
        lines = [json.loads(line) for line in process.stderr]
    access = [line for line in lines if line["logger"] == "chainrule.access"]
    calls = [line for line in access if line["path"] == "/apply"]
    assert [(c["method"], c["status"]) for c in calls] == [("POST", 200)] * 2
    assert all(c["seconds"] > 0 and c["received"] > 0 and c["sent"] > 0 for c in calls)
    if workers:
        lines += [json.loads(line) for line in log.read_text().splitlines()]
    said = [line for line in lines if line["logger"] == "link"]
    assert [line["message"] for line in said] == ["passing on 0 links"] * 2
    assert [line["run_id"] for line in said] == [c["run_id"] for c in calls]
    assert calls[0]["run_id"] == "mine"
    text = json.dumps(lines)
    assert str(SECRET) not in text
    assert str(2 * SECRET) not in text


def test_a_caller_cannot_write_lines_of_its_own(caplog):
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 404})

    async def send(message):
        pass

    forged = "/x\nINFO method=POST path=/apply"
    scope = {
        "type": "http", "method": "POST", "path": forged, "headers": [],
        "query_string": b"run_id=a%0aINFO%20b",
    }  # fmt: skip
    with caplog.at_level("INFO", "chainrule.access"):
        asyncio.run(AccessLog(answer)(scope, None, send))
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert json.dumps(forged) in record.getMessage()
    assert record.facts["path"] == forged


ESCAPES = "\x1b[2J\x1b]0;title\x07 caf\u00e9 \x9b31m"
SHOWN = "\\x1b[2J\\x1b]0;title\\x07 caf\u00e9 \\u009b31m"


@pytest.mark.parametrize("wait", ["true", "false"])
def test_what_author_code_prints_has_no_control_characters(
    tmp_path, start_server, wait_until, wait
):
    source = tmp_path / "loud.py"
    source.write_text(
        "import logging, sys\n"
        "from chainrule.runtime import component\n"
        "@component\n"
        "def loud(text: str) -> float:\n"
        "    print(text)\n"
        "    print(text, file=sys.stderr, flush=True)\n"
        "    logging.getLogger('chainrule.loud').warning(text)\n"
        "    return 1.0\n"
    )
    served = start_server(components=str(source), stderr=subprocess.PIPE)
    with served.process as process:
        assert served.post(f"/apply?wait={wait}", {"inputs": {"text": ESCAPES}}).status < 300
        wait_until(lambda: served.metric("calls_answered_total") > 0)
        served.stop()
        printed = process.stderr.read()
    assert printed.splitlines().count(SHOWN) == 2
    assert f"WARNING {SHOWN}" in printed
    assert printed.replace("\n", "").isprintable()


def test_characters_that_come_in_two_pieces(capfdbinary):
    write, other = ErrorStream().writer(), ErrorStream().writer()
    for piece in ("\x9b\u00e9\n".encode()[i : i + 1] for i in range(5)):
        write(piece)
        other(b"-")
    assert capfdbinary.readouterr().err == b"-\\u009b--\xc3\xa9-\n-"
