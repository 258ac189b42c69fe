"""`/metrics`: text that Prometheus reads, numbers that add up."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

parser = pytest.importorskip("prometheus_client.parser")


def scrape(served):
    """Family → samples; the parser itself refuses text that Prometheus would refuse."""
    answer = served.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = parser.text_string_to_metric_families(answer.body.decode())
    return {family.name: family for family in families}


def total(family, **labels):
    return sum(
        sample.value
        for sample in family.samples
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_counters_add_up_after_a_mixed_load(start_server, workers, wait_until):
    served = start_server(workers=workers)
    sent = Counter()
    received = {"apply": 0}
    for action, status in [("double", 200)] * 5 + [("raise", 500)] * 2 + [("bad_output", 500)]:
        answer = served.apply(action)
        assert answer.status == status
        sent["apply", str(status)] += 1
        received["apply"] += len(answer.body)
    assert served.post("/apply", {"inputs": {"x": "text"}}).status == 422
    sent["apply", "422"] += 1
    body = {"inputs": {"x": [1.0]}, "jac_inputs": ["x"], "jac_outputs": ["y"]}
    for _ in range(3):
        assert served.post("/jacobian", body).status == 200
        sent["jacobian", "200"] += 1
    if workers:
        assert served.apply("exit").status == 502
        sent["apply", "502"] += 1
    families = scrape(served)
    requests = families["chainrule_requests"]
    for (endpoint, status), count in sent.items():
        assert total(requests, endpoint=endpoint, status=status) == count
    assert total(requests) == sum(sent.values())
    assert total(families["chainrule_calls_answered"]) == sum(sent.values()) - bool(workers)
    assert total(families["chainrule_calls_crashed"]) == bool(workers)
    wait_until(lambda: total(scrape(served)["chainrule_worker_restarts"]) == bool(workers))

    durations = defaultdict(dict)
    for sample in families["chainrule_request_duration_seconds"].samples:
        key = sample.labels["endpoint"], sample.name.rpartition("_")[2]
        durations[key][sample.labels.get("le")] = sample.value
    for endpoint in ("apply", "jacobian"):
        buckets = list(durations[endpoint, "bucket"].values())
        assert buckets == sorted(buckets)
        count = sum(n for (name, _), n in sent.items() if name == endpoint)
        assert durations[endpoint, "count"][None] == buckets[-1] == count
        assert durations[endpoint, "sum"][None] > 0
    # Refusals before the component are answered by the server, whose bodies are not counted here.
    assert total(families["chainrule_sent_bytes"], endpoint="apply") >= received["apply"]
    assert total(families["chainrule_received_bytes"], endpoint="jacobian") > 0
    (running,) = families["chainrule_calls_running"].samples
    assert running.value == 0
    (component,) = {s.labels["component"] for s in families["chainrule_jobs"].samples}
    assert component == running.labels["component"]
    assert {
        s.labels["state"]: s.value for s in families["chainrule_jobs"].samples
    } == dict.fromkeys(("queued", "running", "succeeded", "failed", "cancelled"), 0.0)


def test_bodies_in_shared_memory_are_counted(start_server):
    from chainrule.client import Component

    served = start_server(workers=1)
    with Component.from_url(served.url) as component:
        for _ in range(5):
            component.apply({"x": np.ones(100_000)})
    families = scrape(served)
    assert total(families["chainrule_requests"], endpoint="apply", status="200") == 5
    assert total(families["chainrule_received_bytes"], endpoint="apply") > 5 * 800_000
    assert total(families["chainrule_sent_bytes"], endpoint="apply") > 5 * 800_000
