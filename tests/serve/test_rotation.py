"""Tokens and certificates that change while a server runs: names, limits, what is refused, what is shown."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import threading
from contextlib import closing
from http.client import HTTPSConnection

import numpy as np
import pytest

from chainrule import Component
from chainrule._tokens import read_token_file
from chainrule.errors import InputError, NotGrantedError, TransportError
from chainrule.serve import ServeOptions, create_app

OLD, NEW, OTHER = "old-token-0123456789", "new-token-0123456789", "other-token-0123456789"


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def replace(file, content):
    """As an editor or Kubernetes does: another file gets the name."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(content)
    new.chmod(0o600)
    os.replace(new, file)


def samples(served, token):
    answer = served.get("/metrics", bearer(token))
    assert answer.status == 200
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


# --- the file --------------------------------------------------------------------------------------


def test_what_a_token_file_says(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"{OLD}\n")
    (holder,) = read_token_file(file)
    assert (holder.name, holder.tokens) == ("default", (OLD.encode(),))
    assert (holder.rate, holder.calls) == (None, None)
    file.write_text(
        f"# who may call\n\nalice {NEW} rate=2.5 calls=4\n  bob\t{OTHER} calls=1\r\nalice {OLD}\n"
    )
    alice, bob = read_token_file(file)
    assert alice.tokens == (NEW.encode(), OLD.encode())
    assert (alice.rate, alice.calls) == (2.5, 4)
    assert (bob.name, bob.rate, bob.calls) == ("bob", None, 1)
    assert OLD not in repr(alice)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no token in it"),
        (f"# {OLD}", "has no token in it"),
        ("short", "Line 1 .* has a token of 5 characters"),
        (f"alice {OLD}\nbob short", "Line 2 .* has a token of 5 characters"),
        (f"alice {OLD}\nbob {OLD}", "Line 2 .* has the same token as a line of 'alice'"),
        (f"{OLD}\n{OLD}", "the same token as a line of 'default'"),
        (f"alice {OLD} rate=1\nalice {NEW} rate=2", "gives 'alice' another limit"),
        (f"alice {OLD} {NEW}", "has 3 words"),
        (f"a/b {OLD}", "begins with something that is no name"),
        (f"alice {OLD} rate=0", "rate has to be a number of requests per second above 0"),
        (f"alice {OLD} rate=nan", "found 'nan'"),
        (f"alice {OLD} calls=1.5", "calls has to be a whole number"),
        (f"alice {OLD} calls=1 calls=2", "gives calls twice"),
        ("\xe9" * 20, "it is not ASCII text"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used(tmp_path, content, said):
    file = tmp_path / "tokens"
    file.write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        create_app(lambda x: x, options=ServeOptions(workers=0, token_file=file))
    assert caught.value.code == "bad_token_file"
    assert OLD not in caught.value.message
    with pytest.raises(InputError, match="No such file"):
        Component.from_url("http://localhost", token_file=tmp_path / "absent")


def test_a_file_that_everyone_can_read(tmp_path, caplog):
    for mode, is_told in ((0o600, False), (0o640, False), (0o644, True)):
        caplog.clear()
        file = tmp_path / f"{mode}"
        file.write_text(OLD)
        file.chmod(mode)
        create_app(lambda x: x, options=ServeOptions(workers=0, token_file=file))
        assert ("chmod 600" in caplog.text) == is_told


# --- a change --------------------------------------------------------------------------------------


def test_a_token_is_changed_without_a_gap(start_server, tmp_path, wait_until):
    """One holder: first with the old token, then both, then the new one; in a folder as of Kubernetes."""
    for name, token in (("1", OLD), ("2", f"{NEW}\n{OLD}"), ("3", NEW), ("4", "bad")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(token)
        (tmp_path / name / "token").chmod(0o600)
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "token").symlink_to("..data/token")
    with open(tmp_path / "log", "wb") as log:
        served = start_server(
            workers=0, token_file=str(tmp_path / "token"), stderr=log, access_log=True
        )

    def point_to(name):
        (tmp_path / "new").symlink_to(name)
        os.replace(tmp_path / "new", tmp_path / "..data")

    client = Component.from_url(served.url, token_file=tmp_path / "token", share_memory=False)
    x = {"x": np.ones(2), "action": "double", "seconds": 0.0}
    client.apply(x)
    assert served.get("/status", bearer(NEW)).status == 401
    point_to("2")
    assert served.get("/status", bearer(NEW)).status == 200  # a token that is not known has it read
    assert served.get("/status", bearer(OLD)).status == 200
    client.apply(x)
    point_to("3")
    wait_until(lambda: served.get("/status", bearer(OLD)).status == 401)
    client.apply(x)  # it still had the old token: 401, then the file
    assert client.submit("apply", x).result(timeout=300)["y"].tolist() == [2.0, 2.0]
    point_to("4")
    name = 'chainrule_files_failed_total{files="token"}'
    wait_until(lambda: samples(served, NEW)[name] == 1)
    assert samples(served, NEW)['chainrule_files_current{files="token"}'] == 0
    client.apply(x)  # what it has is good, so its file is not read
    point_to("3")
    wait_until(lambda: samples(served, NEW)['chainrule_files_current{files="token"}'] == 1)
    found = samples(served, NEW)
    assert found["chainrule_unauthorized_total{}"] >= 2
    assert found['chainrule_token_requests_total{token="default"}'] > 5
    served.stop()
    written = (tmp_path / "log").read_text()
    assert (
        "cannot be used. What was read before stays in force. Line 1 of the token file" in written
    )
    assert "token=default" in written
    assert not any(token in written for token in (OLD, NEW, "bad\n"))


def test_a_client_whose_file_has_nothing_new(start_server, tmp_path):
    file = tmp_path / "token"
    file.write_text(OLD)
    (tmp_path / "of-client").write_text(OTHER)
    served = start_server(workers=0, token_file=str(file))
    client = Component.from_url(served.url, token_file=tmp_path / "of-client")
    x = {"x": [1.0], "action": "double", "seconds": 0.0}
    for content in (OTHER, ""):  # the same again, or none at all: the server's answer stands
        (tmp_path / "of-client").write_text(content)
        with pytest.raises(NotGrantedError) as caught:
            client.apply(x)
        assert caught.value.code == "unauthorized"
    (tmp_path / "of-client").write_text(OLD)
    assert client.apply(x)["y"][0] == 2.0
    with pytest.raises(InputError, match="not both"):
        Component.from_url(served.url, token=OLD, token_file=file)


def test_shared_memory_after_a_change(start_server, tmp_path, wait_until):
    """Channels of a removed token are closed; a client with the new one has its calls answered."""
    file = tmp_path / "token"
    replace(file, OLD)
    served = start_server(workers=1, token_file=str(file))
    client = Component.from_url(served.url, token_file=file)
    x = {"x": np.ones(100_000), "action": "double", "seconds": 0.0}
    secrets = []

    def is_known(token):
        return served.get("/same-host", bearer(token)).status == 200

    def offered(token):
        return served.get("/same-host", bearer(token)).tree["secret"]

    for gone, new, *more in ((OTHER, OLD), (OTHER, NEW, OLD), (OLD, NEW), (NEW, OTHER)):
        replace(file, "\n".join([new, *more]))
        wait_until(lambda new=new, gone=gone: is_known(new) and not is_known(gone))
        for _ in range(3):
            assert client.apply(x)["y"][0] == 2.0
        secrets.append(offered(new))
    # A token that is added changes nothing; one that is removed does.
    assert secrets[0] == secrets[1]
    assert len(set(secrets)) == 3


# --- limits ----------------------------------------------------------------------------------------


def test_limits_by_name(start_server, tmp_path, wait_until):
    file = tmp_path / "tokens"
    replace(file, f"slow {OLD} rate=0.001\nbusy {NEW} calls=1\nfree {OTHER}\n")
    with open(tmp_path / "log", "wb") as log:
        served = start_server(
            workers=2, token_file=str(file), stderr=log, access_log=True, log_format="json"
        )
    assert served.get("/status", bearer(OLD)).status == 200
    answer = served.apply(headers=bearer(OLD))
    assert (answer.status, answer.problem["code"]) == (429, "rate_limited")
    assert 0 < int(answer.headers["retry-after"]) <= 1000
    assert served.get("/health", bearer(OLD)).status == 200  # probes are open, and not counted

    background = served.in_background("sleep", 2.0, headers=bearer(NEW))
    running = 'chainrule_token_calls_running{token="busy"}'
    wait_until(lambda: samples(served, OTHER)[running] == 1)
    answer = served.apply(headers=bearer(NEW))
    assert (answer.status, answer.problem["code"]) == (429, "too_many_calls")
    assert answer.headers["retry-after"] == "1"
    assert served.get("/status", bearer(NEW)).status == 200
    assert served.apply(headers=bearer(OTHER)).status == 200
    # A client waits as it is told, and its call is answered.
    client = Component.from_url(served.url, token=NEW, retries=100)
    assert client.apply({"x": [1.0], "action": "double", "seconds": 0.0})["y"][0] == 2.0
    assert background.result().status == 200
    impatient = Component.from_url(served.url, token=OLD, retries=0)
    with pytest.raises(TransportError, match="requests per second") as caught:
        impatient.apply({"x": [1.0]})
    assert caught.value.code == "rate_limited"

    # Other limits, and the holder keeps what it has used.
    replace(file, f"slow {OLD} rate=1000\nbusy {NEW}\nfree {OTHER}\n")
    wait_until(lambda: served.get("/status", bearer(OLD)).status == 200)
    found = samples(served, OTHER)
    assert found['chainrule_token_limited_total{token="slow",limit="rate"}'] >= 2
    assert found['chainrule_token_limited_total{token="busy",limit="calls"}'] >= 1
    assert found['chainrule_token_rate_limit{token="slow"}'] == 1000
    assert 'chainrule_token_calls_limit{token="busy"}' not in found
    assert found[running] == 0
    assert (
        found['chainrule_requests_total{component="fault_component",endpoint="apply",status="429"}']
        >= 2
    )
    served.stop()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    seen = {(line["token"], line["path"], line["status"]) for line in lines if "token" in line}
    assert {("slow", "/apply", 429), ("busy", "/apply", 200), ("free", "/metrics", 200)} <= seen
    assert not any(token in str(lines) for token in (OLD, NEW, OTHER))


# --- certificates ----------------------------------------------------------------------------------


def make_certificate(folder, name):
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return key.read_text(), certificate.read_text()


def test_a_certificate_is_changed(start_server, tmp_path, wait_until):
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    replace(key, first[0])
    replace(certificate, first[1])
    served = start_server(workers=0, tls_certificate=str(certificate), tls_key=str(key))
    trusting = {"x": [1.0], "action": "double", "seconds": 0.0}

    def is_served(content):
        context = ssl.create_default_context(cadata=content)
        with closing(HTTPSConnection(served.netloc, context=context, timeout=300)) as connection:
            try:
                connection.request("GET", "/health")
            except ssl.SSLCertVerificationError:
                return False
            return connection.getresponse().status == 200

    def metric(name):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with closing(HTTPSConnection(served.netloc, context=context, timeout=300)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        (value,) = (float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))
        return value

    assert is_served(first[1])
    assert not is_served(second[1])
    kept = Component.from_url(served.url, verify=ssl.create_default_context(cadata=first[1]))
    kept.apply(trusting)
    replace(certificate, second[1])  # without its key, as between two renames
    wait_until(lambda: metric("chainrule_files_failed_total") == 1)
    assert is_served(first[1])
    replace(key, second[0])
    wait_until(lambda: metric("chainrule_files_loaded_total") == 1)
    assert metric("chainrule_files_current") == 1
    assert is_served(second[1])
    assert not is_served(first[1])
    renewed = Component.from_url(served.url, verify=ssl.create_default_context(cadata=second[1]))
    assert renewed.apply(trusting)["y"][0] == 2.0


# --- the end ---------------------------------------------------------------------------------------


def test_readiness_says_that_the_server_is_about_to_stop(start_server):
    served = start_server(workers=0, drain_delay_s=300.0)
    assert served.get("/ready").status == 200
    served.process.terminate()
    stopping = threading.Event()
    while (ready := served.get("/ready")).status == 200:
        stopping.wait(0.02)
    assert (ready.status, ready.tree["status"]) == (503, "draining")
    assert served.metric("draining") == 1
    assert served.apply().status == 200
    assert served.process.poll() is None
    served.stop()  # a second signal does not wait
    assert served.process.returncode in (0, -15)
