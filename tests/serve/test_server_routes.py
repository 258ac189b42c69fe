"""Routes of the server are in its OpenAPI document, and what does not reach a component is counted."""

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

JOBS = [
    "/jobs",
    "/jobs/{id}",
    "/jobs/{id}/result",
    "/jobs/{id}/events",
    "/jobs/{id}/log",
    "/status",
]


def validated(document, operation, answer):
    described = operation["responses"][str(answer.status)]
    (media,) = described["content"]
    assert answer.headers["content-type"].startswith(media)
    schema = described["content"][media].get("schema", {})
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(
        answer.tree if media == "application/json" else None if schema else {}
    )


def test_what_is_described_is_what_is_answered(any_served):
    document = any_served.get("/openapi.json").tree
    assert [path for path in document["paths"] if path in JOBS] == JOBS
    job = any_served.post("/apply?wait=false", {"inputs": {"x": [1.0]}})
    assert job.status == 202
    name = job.tree["id"]
    any_served.get(f"/jobs/{name}/events")  # ends when the job does
    for path in JOBS:
        operation = document["paths"][path]["get"]
        validated(document, operation, any_served.get(path.replace("{id}", name)))
    for path in JOBS[1:5]:
        missing = any_served.get(path.replace("{id}", "nothing"))
        assert str(missing.status) in document["paths"][path]["get"]["responses"]
    assert any_served.get("/jobs?limit=0").status == 422


def test_a_component_among_others_describes_itself_alone(any_served):
    document = any_served.get("/openapi.json").tree
    name = any_served.get("/status").tree["components"][0]["name"]
    own = any_served.get(f"/c/{name}/openapi.json").tree
    assert set(document["paths"]) - set(own["paths"]) == set(JOBS)
    assert {**document, "paths": 0, "components": 0} == {**own, "paths": 0, "components": 0}


@pytest.mark.interop
def test_clients_of_the_peer_are_not_disturbed(any_served):
    tesseract = pytest.importorskip("tesseract_core").Tesseract.from_url(any_served.url)
    assert "apply" in tesseract.available_endpoints
    assert tesseract.apply({"x": [1.0]})["y"].tolist() == [2.0]


def requests(served, **headers):
    text = served.get("/metrics", headers).body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {
        (sample.labels["endpoint"], sample.labels["status"]): sample.value
        for sample in families["chainrule_requests"].samples
    }


def test_what_is_turned_away_is_counted(start_server, tmp_path):
    token = tmp_path / "token"
    token.write_text("correct-horse-battery-staple")
    served = start_server(token_file=str(token))
    try:
        allowed = {"Authorization": "Bearer correct-horse-battery-staple"}
        assert served.post("/apply", {"inputs": {"x": [1.0]}}).status == 401
        assert served.post("/apply", {"inputs": {"x": [1.0]}}, headers=allowed).status == 200
        huge = {**allowed, "Content-Type": "application/json", "Content-Length": str(10**12)}
        assert served.request("POST", "/apply", b"{", huge).status == 413
        assert served.post("/nothing", {}).status == 401
        found = requests(served, **allowed)
        assert found == {("apply", "401"): 1, ("apply", "200"): 1, ("apply", "413"): 1}
    finally:
        served.stop()
