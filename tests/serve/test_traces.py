"""Spans of a pipeline form one trace, also where a link in the middle knows nothing of traces."""

from __future__ import annotations

import gzip
import itertools
import json
import queue
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chainrule._tracing import current_traceparent, is_traced, span
from chainrule.client import Component

LINK = f"{Path(__file__).with_name('pipeline_component.py')}:link"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def recorder():
    """Spans of this process. A process has one provider for good, so all tests share it."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def read_spans(*files):
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def by_name(spans, name):
    (found,) = (one for one in spans if one["name"] == name)
    return found


@pytest.mark.parametrize("share_memory", [False, True])
@pytest.mark.parametrize("traced", [(1, 1, 1), (1, 0, 1)], ids=["all", "not the one in the middle"])
def test_three_components_make_one_trace(start_server, tmp_path, recorder, share_memory, traced):
    """root → call → link 0 → call → link 1 → call → link 2, and nothing beside it."""
    from opentelemetry import trace

    files = [tmp_path / f"spans{k}" for k in range(3)]
    servers = [
        start_server(components=LINK, workers=k % 2, traces_to=str(file) if on else None)
        for k, (file, on) in enumerate(zip(files, traced, strict=True))
    ]
    urls = [served.url for served in servers]
    recorder.clear()
    with Component.from_url(urls[0], share_memory=share_memory) as component:
        component.health()
        with trace.get_tracer("test").start_as_current_span("root"):
            inputs = {"x": 1.0, "rest": urls[1:], "share_memory": share_memory}
            assert component.apply(inputs)["result"] == 8.0
    here = [json.loads(one.to_json()) for one in recorder.get_finished_spans()]
    chain = [by_name(here, "root"), by_name(here, "call apply")]
    for file, on in zip(files, traced, strict=True):
        if on:
            spans = read_spans(file)
            chain.append(by_name(spans, "link apply"))
            chain += [one for one in spans if one["name"] == "call apply"]
    assert len({one["context"]["trace_id"] for one in chain}) == 1
    for parent, child in itertools.pairwise(chain):
        assert child["parent_id"] == parent["context"]["span_id"]
    assert len(chain) == 2 * (1 + sum(traced)) - 1
    kinds = {one["name"]: one["kind"] for one in chain[1:]}
    assert kinds == {"call apply": "SpanKind.CLIENT", "link apply": "SpanKind.SERVER"}
    assert by_name(read_spans(files[0]), "link apply")["attributes"] == {
        "chainrule.component": "link",
        "chainrule.endpoint": "apply",
        "http.response.status_code": 200,
    }


def test_jobs_join_the_trace_of_their_caller(start_server, tmp_path):
    file = tmp_path / "spans"
    served = start_server(components=LINK, workers=1, traces_to=str(file))
    answer = served.post(
        "/apply?wait=false", {"inputs": {"x": 1.0, "rest": []}}, headers={"traceparent": PARENT}
    )
    job = json.loads(answer.body)
    served.get(f"/jobs/{job['id']}/events")
    one = by_name(read_spans(file), "link apply")
    assert one["context"]["trace_id"] == "0x" + PARENT.split("-")[1]
    assert one["parent_id"] == "0x" + PARENT.split("-")[2]


@pytest.fixture
def collector():
    """A collector of OTLP on loopback: its address, and the bodies it was sent."""
    bodies: queue.Queue[bytes] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            encoding = self.headers.get("Content-Encoding")
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.put(gzip.decompress(body) if encoding == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_spans(start_server, collector):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, bodies = collector
    served = start_server(components=LINK, workers=1, traces_to=url)
    served.post("/apply", {"inputs": {"x": 1.0, "rest": []}}, headers={"traceparent": PARENT})
    sent = ExportTraceServiceRequest.FromString(bodies.get(timeout=300))
    spans = [one for r in sent.resource_spans for s in r.scope_spans for one in s.spans]
    assert "link apply" in {one.name for one in spans}
    assert {one.trace_id.hex() for one in spans} == {PARENT.split("-")[1]}


def test_without_opentelemetry_a_place_is_handed_on(monkeypatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert not is_traced()
    assert current_traceparent() is None
    with span("work", kind="SERVER", parent=PARENT) as current:
        assert current is None
        assert is_traced()
        with span("inner", kind="CLIENT"):
            assert current_traceparent() == PARENT
    assert current_traceparent() is None


_IMPORTED_ONLY = """
from opentelemetry import trace
from chainrule._tracing import current_traceparent, is_traced

assert not is_traced()
parent = trace.SpanContext(7, 9, is_remote=True, trace_flags=trace.TraceFlags(1))
with trace.use_span(trace.NonRecordingSpan(parent)):
    assert is_traced()
    assert current_traceparent() == f"00-{7:032x}-{9:016x}-01"
assert not is_traced()
"""


def test_that_somebody_imported_opentelemetry_is_not_yet_a_trace():
    """In a process of its own: this one has a provider for good."""
    pytest.importorskip("opentelemetry.trace")
    subprocess.run([sys.executable, "-c", _IMPORTED_ONLY], check=True, timeout=300)
