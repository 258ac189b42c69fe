"""One handle over several real servers: which one answers, what happens when they die, fail, or change."""

import asyncio
import contextlib
import http.server
import itertools
import os
import pickle
import random
import shutil
import socket
import subprocess
import threading
import urllib.request
import warnings
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from chainrule import apply_component
from chainrule.client import Component
from chainrule.errors import CapabilityError, InputError, NotGrantedError, TransportError
from client.server_farm import SOURCE, Farm

HANG_S = 120  # every limit here only ends what hangs


@pytest.fixture(scope="module")
def farm():
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture(scope="module")
def four(farm):
    return [farm.start() for _ in range(4)]


def over(servers, **options):
    options = {"startup_timeout": HANG_S, "timeout": HANG_S} | options
    return Component.from_urls([server.url for server in servers], **options)


def states(component):
    return [row["state"] for row in component.health()["servers"]]


def wait_for(condition):
    """Until something that happens elsewhere has happened."""
    pause, waited = threading.Event(), 0.0
    while not condition():
        assert waited < HANG_S
        pause.wait(0.02)
        waited += 0.02


def test_four_servers_that_are_killed_and_restarted_lose_no_call(farm):
    """5000 calls and gradients on eight threads; a server is killed and started again in every 500."""
    servers = [farm.start() for _ in range(4)]
    draw = random.Random(0)
    numbers = itertools.count()
    lock = threading.Lock()
    wrong, done, killed = [], Counter(), []

    with over(servers, idempotent=True) as component:

        def one(number):
            x = np.array([float(number), 1.0])
            if number % 2:
                found = component.apply({"x": x})["y"]
                right = found == number**2 + 1.0
            else:
                cotangent = {"y": float(number % 7)}
                found = component.vector_jacobian_product({"x": x}, ["x"], ["y"], cotangent)["x"]
                right = (found == 2 * x * cotangent["y"]).all()
            with lock:
                done[number] += 1
                if not right:
                    wrong.append((number, found))
            with lock:
                if number % 500 == 100:
                    killed.append(draw.randrange(4))
                    servers[killed[-1]].kill()
                if number % 500 == 400:
                    position = killed.pop()
                    servers[position] = farm.start(port=servers[position].port)

        def work():
            while (number := next(numbers)) < 5000:
                one(number)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert wrong == []
        assert sorted(done) == list(range(5000))
        assert set(done.values()) == {1}, "each has one answer"
        wait_for(lambda: set(states(component)) == {"idle"})
        assert sum(row["lost"] for row in component.health()["servers"]) >= 5


def test_calls_are_spread_and_map_uses_all_servers(four):
    with over(four) as component:
        assert repr(component) == "<Component at 4 servers>", "a repr opens no connections"
        items = [{"x": [float(k)]} for k in range(80)]
        results = list(component.map(items))
        assert [result["y"] for result in results] == [k**2 for k in range(80)]
        assert {result["pid"] for result in results} == {server.pid for server in four}
        text = repr(component)
        assert "served_component (4 servers)" in text
        assert f"\n  servers   {four[0].url}  idle     0 of 32 calls\n" in text


def test_gradients_under_jit_and_in_asynchronous_code(four):
    with over(four) as component:

        @jax.jit
        def loss(x):
            return apply_component(component, {"x": x})["y"]

        with jax.enable_x64(True):
            x = jax.numpy.arange(3.0)
            np.testing.assert_array_equal(jax.grad(loss)(x), 2 * x)
            batch = jax.numpy.arange(12.0).reshape(4, 3)
            np.testing.assert_array_equal(jax.vmap(jax.grad(loss))(batch), 2 * batch)

        async def both():
            return await asyncio.gather(*(component.apply_async({"x": [k]}) for k in (2.0, 3.0)))

        assert [found["y"] for found in asyncio.run(both())] == [4.0, 9.0]


def test_a_gradient_goes_to_the_server_of_its_forward_pass(four):
    with over(four) as component:
        for k in range(20):
            component.apply({"x": [float(k)]})
            component.vector_jacobian_product({"x": [float(k)]}, ["x"], ["y"], {"y": 1.0})
        assert component.health()["affinity"] == {"hits": 20, "misses": 0}


def test_gradients_of_other_handles_agree_on_a_server(four):
    """Nothing is known of the forward pass: content decides, so all handles ask the same server."""
    homes = []
    for servers in (four, list(reversed(four))):
        with over(servers) as component:
            component.apply({"x": [0.5]})
            transport = component.transport
            homes.append([transport._home("vector_jacobian_product", b"%d" % k) for k in range(64)])
    assert homes[0] == homes[1]
    assert set(homes[0]) == {server.url for server in four}


def test_a_handle_can_be_sent_to_another_process(four):
    with pickle.loads(pickle.dumps(over(four))) as component:
        assert component.apply({"x": [3.0]})["y"] == 9.0


def test_a_handle_can_be_used_after_a_fork(four):
    with over(four) as component:
        component.apply({"x": [3.0]})
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # JAX has threads; this child does not use it
            warnings.simplefilter("ignore", RuntimeWarning)
            pid = os.fork()
        if not pid:
            os._exit(int(component.apply({"x": [3.0]})["y"]))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        assert component.apply({"x": [2.0]})["y"] == 4.0


def test_another_component_in_the_list_is_refused(farm, four, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(SOURCE.read_text())
    stranger = farm.start(other)
    with over([four[0], stranger]) as component:
        for _ in range(2):
            with pytest.raises(InputError, match="serves the component 'other'") as caught:
                component.apply({"x": [1.0]})
            assert caught.value.code == "other_component"
    stranger.kill()


def changed(folder: Path, old: str, new: str):
    """The same component, with something else in it."""
    source = folder / SOURCE.name
    source.write_text(SOURCE.read_text().replace(old, new))
    return source


def test_a_server_that_comes_back_with_another_interface_gets_no_calls(farm, four, tmp_path):
    server = farm.start()
    with over([four[0], server], idempotent=True) as component:
        component.apply({"x": [1.0]})
        server.kill()
        wait_for(lambda: component.apply({"x": [1.0]}) and states(component)[1] == "down")
        more = changed(tmp_path, "    pid: Int64", "    pid: Int64\n    more: int = 0")
        new = farm.start(more, port=server.port)
        wait_for(lambda: states(component)[1] == "refused")
        row = component.health()["servers"][1]
        assert "outputs.more: a new field" in row["problem"]
        assert {component.apply({"x": [1.0]})["pid"] for _ in range(10)} == {four[0].pid}
        new.kill()
        farm.start(port=server.port)
        wait_for(lambda: states(component) == ["idle", "idle"])


@pytest.mark.parametrize("several", [True, False])
def test_an_interface_that_changed_everywhere_is_a_clear_error(farm, tmp_path, several):
    """Also where the server was never missed: it is another one when the next call comes."""
    server = farm.start()
    options = {"idempotent": True, "timeout": HANG_S}
    if several:
        component = Component.from_urls([server.url], startup_timeout=1.0, **options)
    else:
        component = Component.from_url(server.url, **options)
    with component:
        component.apply({"x": [1.0]})
        server.kill()
        server = farm.start(SOURCE, port=server.port)
        assert component.apply({"x": [3.0]})["y"] == 9.0
        server.kill()
        server = farm.start(
            changed(tmp_path, "mode: str = ", "mode: str; other: str = "), port=server.port
        )
        with pytest.raises(TransportError, match=r"inputs\.mode: is required now") as caught:
            component.apply({"x": [1.0]})
        assert caught.value.code == "schema_changed"
    server.kill()


def test_code_that_changed_without_the_interface_is_called(farm, tmp_path):
    server = farm.start()
    with over([server], idempotent=True) as many, Component.from_url(server.url) as one:
        for component in (many, one):
            assert component.apply({"x": [3.0]})["y"] == 9.0
        server.kill()
        server = farm.start(changed(tmp_path, "np.sum(inputs.x**2)", "1.0"), port=server.port)
        assert [many.apply({"x": [3.0]})["y"], one.submit("apply", {"x": [3.0]}).result()["y"]] == [
            1.0,
            1.0,
        ]
    server.kill()


def test_no_server_answers():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Component.from_urls([url], startup_timeout=0.2) as component:
            for _ in range(2):
                with pytest.raises(TransportError, match=f"{url}: Cannot connect") as caught:
                    component.apply({"x": [1.0]})
                assert caught.value.code == "pool_unavailable"


@pytest.mark.parametrize(
    ("urls", "options", "code"),
    [
        ([], {}, "bad_url"),
        (None, {}, "bad_url"),
        ([1], {}, "bad_url"),
        ("http://a:1", {}, "bad_url"),
        (["http://a:1", "http://a:1/"], {}, "bad_url"),
        (["http://a:1"], {"idempotent": "yes"}, "bad_option"),
        (["http://a:1"], {"startup_timeout": 0}, "bad_option"),
        (["http://a:1"], {"token": "a", "token_file": "b"}, "bad_option"),
        (["http://a:1"], {"token_file": "/missing"}, "bad_token_file"),
    ],
)
def test_unfit_options(urls, options, code):
    with pytest.raises(InputError) as caught:
        Component.from_urls(urls, **options)
    assert caught.value.code == code


def test_what_may_have_run_is_repeated_only_if_that_is_allowed(farm, tmp_path):
    """The call waits for a file; its server is killed while it does."""
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    inputs = {"x": [3.0], "note_in": str(notes), "mode": f"until {gate}"}
    for idempotent in (False, True):
        notes.write_text("")
        gate.unlink(missing_ok=True)
        servers = [farm.start() for _ in range(2)]
        with over(servers, idempotent=idempotent) as component:
            job = component.start_call("apply", {"inputs": inputs})
            wait_for(lambda: notes.read_text().endswith("\n"))
            pid = int(notes.read_text())
            next(server for server in servers if server.pid == pid).kill()
            gate.touch()
            if idempotent:
                assert job.result(HANG_S)["y"] == 9.0
            else:
                with pytest.raises(TransportError, match="idempotent=True") as caught:
                    job.result(HANG_S)
                assert caught.value.code == "connection_lost"
            assert component.apply({"x": [2.0]})["y"] == 4.0
        for server in servers:
            if server.pid != pid:
                server.kill()


def test_a_call_with_a_key_runs_once_on_its_server(farm, tmp_path):
    """The connection is cut after the call has begun. It is sent again, and finds what it began."""
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    server = farm.start(jobs_folder=str(tmp_path / "jobs"))
    with (
        CuttingProxy(server.port) as proxy,
        Component.from_urls([proxy.url], idempotent="key", retries=5) as component,
    ):
        assert component.name
        inputs = {"x": [3.0], "note_in": str(notes), "mode": f"until {gate}"}
        job = component.start_call("apply", {"inputs": inputs})
        wait_for(lambda: notes.exists() and notes.read_text())
        proxy.cut()
        gate.touch()
        assert job.result(HANG_S)["y"] == 9.0
        assert proxy.connections >= 2
    assert notes.read_text().count("\n") == 1
    server.kill()


class CuttingProxy:
    """Passes bytes on to a server, and cuts all connections when told to."""

    def __init__(self, port):
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._open = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(HANG_S)
        self.cut()
        for connection, _ in self._open:
            connection.close()

    def cut(self):
        for connection, thread in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if thread is not None:
                thread.join(HANG_S)

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pass_on, args=(source, target), daemon=True)
                thread.start()
                self._open.append((source, thread))

    def _pass_on(self, source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def test_jobs_are_found_on_the_server_that_took_them(farm, tmp_path):
    servers = [farm.start(jobs_folder=str(tmp_path / str(k))) for k in range(3)]
    with over(servers) as component, over(servers) as other:
        jobs = [component.submit("apply", {"x": [float(k)]}) for k in range(9)]
        assert [job.result(HANG_S)["y"] for job in jobs] == [k**2 for k in range(9)]
        assert len({job.result(HANG_S)["pid"] for job in jobs}) > 1
        for handle in (component, other):
            assert handle.job(jobs[4].id).result(HANG_S)["y"] == 16.0
        assert jobs[4].done
        assert jobs[4].log == ""
        with pytest.raises(CapabilityError) as caught:
            other.job("0" * 24)
        assert caught.value.code == "job_unknown"
    for server in servers:
        server.kill()


def test_a_full_server_gets_fewer_calls_and_the_others_more(farm, tmp_path):
    """One of two servers takes one call at a time; it is kept busy by another caller."""
    gate, notes = tmp_path / "gate", tmp_path / "notes"
    small, large = farm.start(max_queue=0), farm.start()
    with over([small, large]) as component, Component.from_url(small.url) as rival:
        held = rival.start_call(
            "apply", {"inputs": {"x": [1.0], "note_in": str(notes), "mode": f"until {gate}"}}
        )
        wait_for(lambda: notes.exists())
        results = list(component.map({"x": [float(k)]} for k in range(60)))
        assert [result["y"] for result in results] == [k**2 for k in range(60)]
        assert {result["pid"] for result in results} == {large.pid}
        limits = [row["limit"] for row in component.health()["servers"]]
        assert limits[0] < limits[1] == 32
        gate.touch()
        held.result(HANG_S)
        wait_for(lambda: component.apply({"x": [1.0]})["pid"] == small.pid)
    small.kill()
    large.kill()


@pytest.mark.parametrize("idempotent", [False, "key"])
def test_the_limits_of_a_token_are_waited_for(farm, tmp_path, idempotent):
    """Both servers together let fewer calls through than the handle wants to make."""
    token = "a-token-of-some-length"
    tokens = tmp_path / "tokens"
    tokens.write_text(f"bob {token} rate=20\n")
    servers = [farm.start(token_file=str(tokens)) for _ in range(2)]
    with over(servers, token=token, idempotent=idempotent) as component:
        for k in range(60):
            assert component.apply({"x": [float(k)]})["y"] == k**2
    for server in servers:
        server.kill()


class Gateway(http.server.ThreadingHTTPServer):
    """Passes requests on to a server, with switches for what gateways do."""

    daemon_threads = True

    def __init__(self, server):
        self.behind = server
        self.fails = False
        self.is_ready = True
        self.asked = Counter()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked[self.path] += 1
        if self.path == "/ready" and not self.server.is_ready:
            self._answer(503, "application/json", b"{}")
        else:
            self._pass_on(None)

    def do_POST(self):
        self.server.asked[self.path] += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.fails:
            self._answer(502, "text/html", b"<h1>Bad gateway</h1>")
        else:
            self._pass_on(body)

    def _pass_on(self, body):
        headers = {
            name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers
        }
        request = urllib.request.Request(self.server.behind.url + self.path, body, headers)
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            self._answer(answer.status, answer.headers["Content-Type"], answer.read())

    def _answer(self, status, content_type, body):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def test_a_server_that_fails_is_ejected_until_it_is_ready(four, caplog):
    caplog.set_level("INFO", "chainrule.client")
    with Gateway(four[1]) as gateway:
        urls = [gateway.url, four[0].url]
        with Component.from_urls(urls, idempotent=True, startup_timeout=HANG_S) as component:
            component.apply({"x": [1.0]})
            gateway.asked.clear()
            gateway.fails, gateway.is_ready = True, False
            wait_for(lambda: component.apply({"x": [3.0]}) and states(component)[0] == "ejected")
            assert gateway.asked["/apply"] == 3, "so many failures in a row"
            assert {component.apply({"x": [1.0]})["pid"] for _ in range(20)} == {four[0].pid}
            assert gateway.asked["/apply"] == 3
            wait_for(lambda: gateway.asked["/ready"] >= 2)
            assert "not ready" in component.health()["servers"][0]["problem"]
            assert f"{gateway.url} gets no calls: several calls failed in a row" in caplog.text
            gateway.fails, gateway.is_ready = False, True
            wait_for(lambda: component.apply({"x": [1.0]})["pid"] == four[1].pid)
            assert caplog.text.count(f"{gateway.url} gets calls again") == 1  # not at its first use


def test_at_most_half_of_the_servers_are_ejected(four):
    with contextlib.ExitStack() as stack:
        gateways = [stack.enter_context(Gateway(server)) for server in four]
        component = stack.enter_context(
            Component.from_urls([gateway.url for gateway in gateways], startup_timeout=HANG_S)
        )
        component.apply({"x": [1.0]})
        for gateway in gateways:
            gateway.fails, gateway.is_ready = True, False
        for _ in range(100):
            with pytest.raises(TransportError, match="502"):
                component.apply({"x": [1.0]})
        assert sorted(states(component)) == ["ejected", "ejected", "idle", "idle"]


class Name:
    """What a name stands for; the addresses of loopback are all this machine."""

    def __init__(self, *addresses):
        self.addresses = addresses
        self.asked = []

    def __call__(self, host, port):
        self.asked.append((host, port))
        if not self.addresses:
            raise socket.gaierror("the name server is away")
        return self.addresses


def served_ids(component):
    return [row["server"] for row in component.health()["servers"]]


def test_the_servers_of_a_name_are_followed(farm):
    first = farm.start(host="127.0.0.2", insecure=True)
    port = first.port
    second = farm.start(host="127.0.0.3", port=port, insecure=True)
    name = Name("127.0.0.2")
    with Component.from_url(
        f"http://many.test:{port}", resolve=name, resolve_every=0.05, startup_timeout=HANG_S
    ) as component:
        assert repr(component) == f"<Component at the servers of http://many.test:{port}>"
        assert name.asked == [], "nothing is asked before the first use"
        assert component.apply({"x": [1.0]})["pid"] == first.pid
        assert name.asked[0] == ("many.test", port)
        name.addresses = ("127.0.0.2", "127.0.0.3")
        wait_for(lambda: component.apply({"x": [1.0]})["pid"] == second.pid)
        name.addresses = ()  # keeps what it knows
        asked = len(name.asked)
        wait_for(lambda: len(name.asked) >= asked + 2)
        assert served_ids(component) == [f"127.0.0.2:{port}", f"127.0.0.3:{port}"]
        name.addresses = ("127.0.0.3",)
        wait_for(lambda: served_ids(component) == [f"127.0.0.3:{port}"])
        assert {component.apply({"x": [1.0]})["pid"] for _ in range(10)} == {second.pid}
    first.kill()
    second.kill()


def test_a_name_is_asked_again_after_a_failure(farm):
    first = farm.start(host="127.0.0.2", insecure=True)
    second = farm.start(host="127.0.0.3", port=first.port, insecure=True)
    name = Name("127.0.0.2")
    with Component.from_url(
        f"http://many.test:{first.port}",
        resolve=name,
        resolve_every=1e6,
        startup_timeout=HANG_S,
        idempotent=True,
    ) as component:
        component.apply({"x": [1.0]})
        name.addresses = ("127.0.0.3",)
        first.kill()
        assert component.apply({"x": [1.0]})["pid"] == second.pid
    second.kill()


def test_a_function_for_addresses_that_fails_is_asked_again(farm):
    first = farm.start(host="127.0.0.2", insecure=True)
    second = farm.start(host="127.0.0.3", port=first.port, insecure=True)
    addresses, failures = ["127.0.0.2"], []

    def resolve(host, port):
        if not addresses:
            failures.append(host)
            raise RuntimeError("no such service")
        return addresses

    with Component.from_url(
        f"http://many.test:{first.port}", resolve=resolve, resolve_every=0.01
    ) as component:
        component.apply({"x": [1.0]})
        addresses.clear()
        wait_for(lambda: len(failures) > 10)  # more than there are threads that ask
        addresses.append("127.0.0.3")
        wait_for(lambda: served_ids(component) == [f"127.0.0.3:{first.port}"])
    addresses.clear()
    with Component.from_url("http://many.test:1", resolve=resolve) as component:
        with pytest.raises(TransportError, match="RuntimeError: no such service") as caught:
            component.apply({"x": [1.0]})
        assert caught.value.code == "host_unknown"
    first.kill()
    second.kill()


def test_a_name_of_this_machine(farm):
    server = farm.start()
    with Component.from_url(f"http://localhost:{server.port}", resolve="dns") as component:
        assert component.apply({"x": [2.0]})["y"] == 4.0
        assert f"127.0.0.1:{server.port}" in served_ids(component)
    server.kill()


def test_a_name_without_addresses():
    with Component.from_url("http://many.test:1", resolve=Name()) as component:
        with pytest.raises(
            TransportError, match=r"many\.test are not known: the name server"
        ) as caught:
            component.apply({"x": [1.0]})
        assert caught.value.code == "host_unknown"
    with pytest.raises(InputError) as caught:
        Component.from_url("http://many.test:1", resolve="zookeeper")
    assert caught.value.code == "bad_option"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_certificates_name_the_host_not_the_address(farm, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=many.test",
        "-addext", "subjectAltName=DNS:many.test", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(make, check=True, capture_output=True)
    server = farm.start(tls_certificate=str(certificate), tls_key=str(key), insecure=True)
    options = {"verify": certificate, "resolve": Name("127.0.0.1")}
    with Component.from_url(f"https://many.test:{server.port}", **options) as component:
        assert component.apply({"x": [2.0]})["y"] == 4.0
    with (
        Component.from_url(
            f"https://other.test:{server.port}", startup_timeout=0.2, **options
        ) as component,
        pytest.raises(TransportError, match="not trusted"),
    ):
        component.apply({"x": [2.0]})
    server.kill()


@pytest.mark.parametrize("several", [False, True])
def test_a_token_file_is_read_again_when_the_token_is_refused(farm, tmp_path, several):
    here, there = tmp_path / "here", tmp_path / "there"
    for file in (here, there):
        file.write_text("the-first-token-of-all\n")
    server = farm.start(token_file=str(there))
    make = (
        over
        if several
        else lambda servers, **options: Component.from_url(servers[0].url, **options)
    )
    with make([server], token_file=here) as component:
        assert component.apply({"x": [2.0]})["y"] == 4.0
        server.kill()
        there.write_text("the-second-token-of-all\n")
        here.write_text("the-second-token-of-all\n")
        server = farm.start(token_file=str(there), port=server.port)
        assert component.apply({"x": [3.0]})["y"] == 9.0
        here.write_text("a-token-that-is-not-right")
    with make([server], token_file=here) as component, pytest.raises(NotGrantedError):
        component.apply({"x": [2.0]})
    server.kill()


def test_a_server_that_stops_gets_no_calls_and_loses_none(farm):
    servers = [farm.start() for _ in range(2)]
    with over(servers, idempotent=True) as component:
        inputs = ({"x": [float(k)]} for k in range(400))
        results = component.map(inputs, max_in_flight=8)
        found = [next(results)["y"] for _ in range(100)]
        servers[0].terminate()
        found += [result["y"] for result in results]
        assert found == [k**2 for k in range(400)]
        wait_for(lambda: component.apply({"x": [1.0]}) and states(component)[0] == "down")
    servers[1].kill()
