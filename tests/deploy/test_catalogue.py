"""The catalogue in a real registry on loopback; images are small manifests, as the registry sees them.

That an image of an engine is pushed and described is in `test_images.py`.
"""

import base64
import hashlib
import json
import shutil
import socket
import subprocess
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from chainrule import component
from chainrule.cli import main
from chainrule.deploy import _registry as registries
from chainrule.deploy.catalogue import Catalogue, Query, Reference
from chainrule.deploy.kubernetes import pinned_image
from chainrule.errors import CapabilityError, InputError, TransportError
from chainrule.runtime import Array, Differentiable, Float32, Float64


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """The address of a registry."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    folder = tmp_path_factory.mktemp("registry")
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "content")}},
        "http": {"addr": address},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    command = ["docker-registry", "serve", str(folder / "config.json")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    host, port = address.split(":")
    while True:
        with closing(socket.socket()) as probe:
            if probe.connect_ex((host, int(port))) == 0:
                break
        assert process.poll() is None, "the registry does not start"
    yield address
    process.terminate()
    process.wait()


def document(version, name="heat", **changes):
    """The interface of a component, with some of it changed."""
    types = {
        "field": Differentiable[Array[("n", 3), Float64]],
        "mode": str,
        "result": Differentiable[Array[("n",), Float32]],
        **changes,
    }
    result = types.pop("result")

    parameters = ", ".join(types)
    namespace = {}
    exec(f"def {name}({parameters}): ...", namespace)
    made = namespace[name]
    made.__annotations__ = {**types, "return": result}
    made.__doc__ = f"Solve the {name} equation.\n\nIn detail."
    content = component(made, derivatives="finite").openapi_schema
    content["info"]["version"] = version
    return content


def put_image(registry, repository, tag, content=b"layer"):
    """An image as far as a registry cares: a configuration and a layer."""
    server = registries.Registry(registry)
    config = server.put_blob(
        repository, json.dumps({"layer": content.decode()}).encode(), "application/json"
    )
    layer = server.put_blob(repository, content, "application/octet-stream")
    manifest = {
        "schemaVersion": 2, "mediaType": registries.MANIFEST, "config": config, "layers": [layer],
    }  # fmt: skip
    server.put_manifest(repository, tag, manifest)
    return Reference.parse(f"{registry}/{repository}:{tag}")


def test_what_is_published_is_found(registry):
    catalogue = Catalogue(f"{registry}/found")
    assert catalogue.entries() == []
    with pytest.raises(
        CapabilityError, match=r"no image .*/found/heat:1\.0\.0\. Push it"
    ) as refused:
        pinned_image(f"{registry}/found/heat:1.0.0")
    assert refused.value.code == "not_in_registry"
    heat = put_image(registry, "found/heat", "1.0.0")
    flow = put_image(registry, "found/cfd/flow", "2.1", b"other")
    catalogue.publish(heat, document("1.0.0"), owner="simulation")
    flow_types = {"field": Array[(None,), Float32], "mode": int, "speed": Differentiable[Float64]}
    catalogue.publish(flow, document("2.1", "flow", **flow_types))
    entries = catalogue.entries()
    assert [entry.name for entry in entries] == ["heat", "flow"]
    assert entries[0].description == "Solve the heat equation."
    assert entries[0].image == pinned_image(str(heat))
    assert {(f.side, f.path, f.type, f.differentiable) for f in entries[0].fields} == {
        ("inputs", "field", "Float64[?, 3]", True),
        ("inputs", "mode", "string", False),
        ("outputs", "result", "Float32[?]", True),
    }

    def names(**query):
        return [entry.name for entry in catalogue.search(Query(**query))]

    assert names() == ["flow", "heat"]
    assert names(text="HEAT solve") == ["heat"]
    assert names(text="simulation") == ["heat"]
    assert names(inputs=("Float64",)) == ["flow", "heat"]
    assert names(inputs=("Float64[?, 3]",)) == ["heat"]
    assert names(inputs=("field",)) == ["flow", "heat"]
    assert names(inputs=("field",), differentiable=True) == ["heat"]
    assert names(inputs=("field:float32",)) == ["flow"]
    assert names(outputs=("Float32[?]",)) == ["flow", "heat"]
    assert names(outputs=("Float64",)) == []
    assert names(endpoints=("vector_jacobian_product",)) == ["flow", "heat"]
    assert names(endpoints=("hessian",)) == []
    # The description is also found from the image alone, and has the annotations.
    (described,) = registries.Registry(registry).referrers("found/heat", entries[0].digest)
    annotations = described["annotations"]
    assert annotations["chainrule.owner"] == "simulation"
    assert annotations["chainrule.digest"] == entries[0].digest
    assert "vector_jacobian_product" in annotations["chainrule.derivatives"].split(",")
    assert "apply" not in annotations["chainrule.derivatives"].split(",")
    text = json.dumps(document("1.0.0"), sort_keys=True).encode()
    assert annotations["chainrule.document-hash"] == hashlib.sha256(text).hexdigest()
    assert catalogue.document(entries[0]) == document("1.0.0")


def test_the_index_can_be_written_anew(registry):
    catalogue = Catalogue(f"{registry}/again")
    for version in ("1.0.0", "1.1.0"):
        image = put_image(registry, "again/heat", version, version.encode())
        catalogue.publish(image, document(version))
        catalogue.publish(image, document(version))  # a second time changes nothing
    put_image(registry, "again/without", "1.0.0")  # not described, so not a component
    before = catalogue.entries()
    assert [entry.version for entry in before] == ["1.0.0", "1.1.0"]
    assert [entry.version for entry in catalogue.search(Query())] == ["1.1.0"]
    assert len(catalogue.search(Query(), all_versions=True)) == 2
    catalogue._write([])
    assert catalogue.search(Query()) == []
    rebuilt = catalogue.rebuild()
    assert sorted(rebuilt, key=lambda entry: entry.version) == before
    assert catalogue.entries() == rebuilt


def test_a_version_has_one_image(registry):
    catalogue = Catalogue(f"{registry}/once")
    catalogue.publish(put_image(registry, "once/heat", "1.0.0"), document("1.0.0"))
    moved = put_image(registry, "once/heat", "1.0.0", b"changed")
    with pytest.raises(InputError, match="a version never changes") as raised:
        catalogue.publish(moved, document("1.0.0"))
    assert raised.value.code == "version_exists"
    with pytest.raises(InputError, match=r"version: 1\.0\.0") as raised:
        catalogue.publish(moved, document("unknown"))
    assert raised.value.code == "no_version"


def test_a_version_is_compared_with_the_one_before(registry):
    catalogue = Catalogue(f"{registry}/gate")
    for version in ("1.0.0", "1.9.0", "1.10.0", "2.0.0"):
        image = put_image(registry, "gate/heat", version, version.encode())
        changes = (
            {} if version != "1.10.0" else {"field": Differentiable[Array[("n", None), Float64]]}
        )
        catalogue.publish(image, document(version, **changes))

    def breaks(version, **changes):
        image = Reference.parse(f"{registry}/gate/heat:{version}")
        return [c.where for c in catalogue.check(image, document(version, **changes)) if c.breaks]

    assert breaks("1.9.5") == []
    # After 1.10.0, whose field has any second size, three columns are less than was promised.
    assert breaks("1.11.0") == ["inputs.field"]
    assert breaks("2.0.1", mode=int) == ["inputs.mode"]
    assert breaks("3.0.0", mode=int) == []


def test_the_commands(registry, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # a narrow table breaks descriptions
    catalogue = Catalogue(f"{registry}/command")
    catalogue.publish(put_image(registry, "command/heat", "1.0.0"), document("1.0.0"), owner="us")

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["search", f"{registry}/command", *arguments])
        return left.value.code, *capfd.readouterr()

    code, out, _ = run()
    assert code == 0
    assert "Solve the heat equation." in out
    assert "field: Float64[?, 3]" in out
    assert run("--text", "flow")[1] == "No component fits.\n"
    (found,) = json.loads(run("--json", "--rebuild")[1])
    assert found["owner"] == "us"
    assert found["image"].startswith(f"{registry}/command/heat@sha256:")
    # A prefix that was mistyped is not a search without results.
    with pytest.raises(SystemExit) as left:
        main(["search", f"{registry}/comand"])
    assert left.value.code == 0
    said = f"No component was pushed to {registry}/comand with `chainrule image push`.\n"
    assert capfd.readouterr().out == said
    # A registry whose images are below a prefix.
    with pytest.raises(SystemExit):
        main(["search", registry])
    assert f"search {registry}/PREFIX" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag"),
    [
        ("heat", "docker.io", "library/heat", "latest"),
        ("team/heat:1", "docker.io", "team/heat", "1"),
        ("localhost/heat", "localhost", "heat", "latest"),
        ("127.0.0.1:5000/a/b:c", "127.0.0.1:5000", "a/b", "c"),
        ("registry.example/heat", "registry.example", "heat", "latest"),
    ],
)
def test_names_of_images(text, host, repository, tag):
    found = Reference.parse(text)
    assert (found.host, found.repository, found.tag) == (host, repository, tag)


def test_names_that_are_none():
    for text in ("", "Heat Image", "heat@sha256:12", "-heat"):
        with pytest.raises(InputError, match=r"registry\.example/team/heat"):
            Reference.parse(text)


def test_a_registry_that_is_not_there_or_is_none():
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(TransportError, match="cannot be reached") as raised:
            Catalogue(f"{place}/team").entries()
    assert raised.value.code == "unreachable"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer_once, args=(listener, b"-ERR no such command\r\n")).start()
        with pytest.raises(TransportError, match="not answer as a registry does") as raised:
            Catalogue(f"127.0.0.1:{listener.getsockname()[1]}/team").entries()
    assert raised.value.code == "not_a_registry"


def answer_once(listener, content):
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(content)


class Guarded(BaseHTTPRequestHandler):
    """A registry that wants a token, and whose content is damaged."""

    password = base64.b64encode(b"me:secret").decode()
    seen: ClassVar = []

    def do_GET(self):
        authorization = self.headers.get("Authorization")
        self.seen.append((self.path, authorization))
        if self.path.startswith("/token"):
            ok = authorization == f"Basic {self.password}"
            self._answer(200 if ok else 401, b'{"token": "t0"}')
        elif authorization != "Bearer t0":
            realm = f"http://{self.headers['Host']}/token"
            challenge = f'Bearer realm="{realm}",service="s",scope="repository:team/x:pull"'
            self._answer(401, b"{}", **{"WWW-Authenticate": challenge})
        elif self.path.endswith("/tags/list?n=1000"):
            self._answer(200, b'{"tags": ["a"]}')
        else:
            self._answer(200, b"damaged")

    def _answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments): ...


@pytest.fixture
def guarded():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Guarded.seen.clear()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_logins(guarded, tmp_path, monkeypatch):
    file = tmp_path / "auth.json"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    file.write_text("{}")
    with pytest.raises(CapabilityError, match=f"podman login {guarded}") as raised:
        list(registries.Registry(guarded).tags("team/x"))
    assert raised.value.code == "registry_denied"
    file.write_text(json.dumps({"auths": {guarded: {"auth": Guarded.password}}}))
    server = registries.Registry(guarded)
    assert list(server.tags("team/x")) == ["a"]
    assert "secret" not in repr(raised.value)
    digest = f"sha256:{hashlib.sha256(b'right').hexdigest()}"
    with pytest.raises(TransportError, match="it is damaged"):
        server.blob("team/x", digest)
    with pytest.raises(TransportError, match=r"not answer as a registry"):
        Catalogue(f"{guarded}/team").entries()
    # One token serves all requests of a handle.
    assert sum(path.startswith("/token") for path, _ in Guarded.seen) == 3
