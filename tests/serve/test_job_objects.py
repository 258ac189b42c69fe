"""Large bodies of jobs in a bucket, against the S3 API of moto's server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import StorageError

JOB_COMPONENT = str(Path(__file__).with_name("job_component.py"))
FRAMES = "application/vnd.chainrule.frames"


@pytest.fixture
def bucket(monkeypatch):
    """The client of a bucket `jobs`, to which the variables of this process lead."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto")
    pytest.importorskip("flask_cors")
    program = (
        "from moto.server import ThreadedMotoServer as S; import time; s = S('127.0.0.1', 0)\n"
    )
    program += "s.start(); print(s.get_host_and_port()[1], flush=True); time.sleep(3600)"
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = [server.stdout.readline(), server.stdout.readline()][-1].strip()
        assert port
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "pa55word",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="jobs")
        yield client
        client.close()
    finally:
        server.kill()
        server.communicate()


def names(bucket):
    """All objects, other than those that mark the place of a database."""
    listed = bucket.list_objects_v2(Bucket="jobs").get("Contents", ())
    return sorted(each["Key"] for each in listed if "chainrule-jobs-" not in each["Key"])


def test_large_bodies_of_jobs_are_objects(bucket, start_server, postgres, tmp_path, wait_until):
    told, large = tmp_path / "told", np.arange(20_000.0)
    served = start_server(
        components=JOB_COMPONENT, workers=1, jobs=postgres.new_schema(), jobs_objects="s3://jobs/of/heat",
    )  # fmt: skip

    def submit(**inputs):
        answer = served.post("/apply?wait=false", {"inputs": inputs}, format=FRAMES.split("/")[1])
        return json.loads(answer.body)["id"]

    job = submit(x=large, action="until_told", label=str(told))
    (request,) = names(bucket)
    assert request.startswith(f"of/heat/{job}-")
    assert request.endswith(".request")
    told.touch()
    wait_until(lambda: served.get(f"/jobs/{job}/result").status == 200)
    answer = served.get(f"/jobs/{job}/result", {"Accept": FRAMES})
    np.testing.assert_array_equal(answer.tree["y"], 2 * large)
    wait_until(lambda: [name.rpartition(".")[2] for name in names(bucket)] == ["result"])
    small = submit(x=large[:2])
    wait_until(lambda: served.get(f"/jobs/{small}/result").status == 200)
    (result,) = names(bucket)
    content = bytearray(bucket.get_object(Bucket="jobs", Key=result)["Body"].read())
    content[-1] ^= 1
    bucket.put_object(Bucket="jobs", Key=result, Body=bytes(content))
    assert served.get(f"/jobs/{job}/result").problem["code"] == "job_result_damaged"
    bucket.delete_object(Bucket="jobs", Key=result)
    assert served.get(f"/jobs/{job}/result").problem["code"] == "job_expired"
    served.stop()


def test_bodies_that_no_job_has_are_removed_from_a_bucket(bucket, postgres, monkeypatch):
    """Those of servers that were killed, of these jobs only."""
    from chainrule.serve._jobs import _postgres
    from chainrule.serve._jobs._store import JobRecord

    monkeypatch.setattr(_postgres, "_COLLECT_S", -1.0)
    store = _postgres.PostgresJobStore(
        postgres.new_schema(), objects="s3://jobs/of/heat", lease_s=3600, retention_s=0, max_bytes=1
    )
    body = b"b" * 100_000
    record = JobRecord(component="c", endpoint="apply", run_id="r", content_type="t")
    store.add(record, body, max_waiting=9)
    (kept,) = names(bucket)
    orphan = f"{'0' * 24}-{'1' * 24}.result"
    others = ["of/heat/notes.result", f"of/mesh/{orphan}", orphan]
    for key in (f"of/heat/{orphan}", *others):
        bucket.put_object(Bucket="jobs", Key=key, Body=b"")
    store.sweep()
    assert names(bucket) == sorted([kept, *others])
    store.close()


def test_a_bucket_that_cannot_be_used(bucket, monkeypatch):
    from chainrule.serve._jobs._objects import open_objects

    objects = open_objects("s3://jobs")
    objects.put("a", [b"one", memoryview(b"two")])
    assert objects.get("a") == b"onetwo"
    objects.remove("a", "b")
    assert objects.get("a") is None
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL") as refused:
        open_objects("s3://absent/prefix")
    assert refused.value.code == "jobs_objects_unreachable"
    assert "pa55word" not in str(refused.value)
    bucket.delete_bucket(Bucket="jobs")
    with pytest.raises(StorageError) as refused:
        objects.put("b", [b""])
    assert "127.0.0.1" not in refused.value.message
    assert objects.older_than(0.0) == []
    objects.remove("b")
