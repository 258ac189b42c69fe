"""Requests that schemathesis derives from our OpenAPI document, good and bad: none may be a 5xx."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode


@pytest.fixture(scope="module")
def operations(any_served):
    document = any_served.get("/openapi.json").tree
    # Author code that crashes on purpose is not what is looked for here.
    for model in document["components"]["schemas"].values():
        if "action" in model.get("properties", {}):
            model["properties"]["action"] = {"type": "string", "const": "double"}
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=any_served.url)
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if operation.method == "post"]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_is_our_fault(operations, mode):
    statuses = set()
    for operation in operations:
        strategy = operation.as_strategy(generation_mode=mode)

        @hypothesis.settings(
            max_examples=10, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(case=strategy)
        def check(case):
            answer = case.call(timeout=300)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, answer.text[:500]

        check()
    assert statuses
