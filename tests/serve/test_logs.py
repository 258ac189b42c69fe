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
