"""`watch`: what is recorded of a run, that it stays small, and that nothing in it ends the loop."""

import http.client
import json
import logging
import re
import threading
from html import unescape
from urllib.parse import urlparse

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from tests.view.pages import data_of

import chainrule
from chainrule._codec import decode_array
from chainrule.errors import InputError


def get(url, path="/", **headers):
    address = urlparse(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
    connection.request("GET", path, headers={name.capitalize(): v for name, v in headers.items()})
    return connection, connection.getresponse()


def events(response):
    """(name, data) of every server-sent event until the end."""
    for line in response:
        name = line.decode().removeprefix("event: ").strip()
        data = json.loads(response.readline().decode().removeprefix("data: "))
        response.readline()
        yield name, data


@given(st.integers(1, 2000), st.integers(3, 40))
def test_long_runs_keep_evenly_spaced_steps_with_the_first_and_the_last(count, most):
    w = chainrule.watch(max_frames=most)
    for step in range(count):
        w(cost=step)
        assert len(w.frames) <= most
        assert w.frames[-1].step == step
    steps = [frame.step for frame in w.frames]
    assert steps[0] == 0
    gaps = np.diff(steps)
    assert len(set(gaps[:-1])) <= 1
    assert all(0 < gaps[-1] <= gap for gap in gaps[:-1])
    assert len(steps) >= min(count, most // 2)


def test_norms_inputs_and_fields():
    w = chainrule.watch()
    gradients = {"solver": {"a": jnp.array([3.0, 0.0]), "b": [4.0]}, "layout": np.float32(-2.0)}
    w(7, cost=jnp.float32(1.5), gradients=gradients, inputs={"p": {"q": [1, 2]}, "name": "text"},
      fields={"z": np.array([3 + 4j])})  # fmt: skip
    (frame,) = w.frames
    assert (frame.step, frame.cost) == (7, 1.5)
    assert frame.gradients == {"solver": 5.0, "layout": 2.0}
    assert list(frame.inputs) == ["p.q.[0]", "p.q.[1]"]
    np.testing.assert_array_equal(frame.fields["z"], [5.0])
    w(gradients=jnp.array([3.0, 4.0]), inputs=np.zeros(2), fields={"z": np.array(3 + 4j)})
    assert w.frames[1].gradients == {"gradient": 5.0}
    assert list(w.frames[1].inputs) == ["inputs"]
    np.testing.assert_array_equal(w.frames[1].fields["z"], 5.0)
    assert w.html()


def test_fields_are_small_copies():
    field = np.arange(200.0 * 130).reshape(200, 130)
    line = np.arange(1030.0)
    w = chainrule.watch()
    w(fields={"field": field, "line": line, "cube": np.ones((4, 5, 6)), "big": np.full(2, 1e300)})
    fields = w.frames[0].fields
    assert fields["field"].shape == (50, 44)
    np.testing.assert_allclose(fields["field"][3, 5], field[12:16, 15:18].mean())
    np.testing.assert_allclose(fields["line"][-1], line[1029:].mean())
    assert fields["cube"].shape == (5, 6)
    assert fields["big"][0] == 1e300
    small = np.zeros((3, 3))
    w(fields={"field": small})
    small[:] = 1.0
    np.testing.assert_array_equal(w.frames[1].fields["field"], np.zeros((3, 3)))


def test_a_saved_run_is_one_file(tmp_path):
    w = chainrule.watch("</script><b>run")
    w(cost=np.nan, gradients={"g": np.inf}, fields={"f": np.array([[np.nan, 1.0]])})
    page = w.save(tmp_path / "run.html").read_text()
    assert not re.search(r"(src|href)=.(http|/)", page)
    data = data_of(page)
    assert data["title"] == w.title
    (frame,) = data["frames"]
    assert (frame["cost"], frame["gradients"]) == ("nan", {"g": "inf"})
    np.testing.assert_array_equal(decode_array(frame["fields"]["f"]), [[np.nan, 1.0]])
    assert data["firstOdd"] == {"name": "The cost", "value": "NaN", "step": 0}
    assert data_of(unescape(w._repr_html_())) == data
    with pytest.raises(InputError) as caught:
        w.save(tmp_path / "run.png")
    assert caught.value.code == "picture_format"


def test_a_browser_gets_every_step_and_the_end():
    with chainrule.watch("live") as w:
        w(cost=3.0)
        page, response = get(w.url)
        assert data_of(response.read().decode())["isLive"] is True
        page.close()
        stream, response = get(w.url, "/events")
        arriving = events(response)
        name, first = next(arriving)
        assert (name, [frame["cost"] for frame in first["frames"]]) == ("news", [3.0])
        w(cost=2.0)
        w(cost=1.0)
    rest = list(arriving)
    stream.close()
    assert rest[-1][0] == "end"
    later = [frame["cost"] for _, news in rest[:-1] for frame in news["frames"]]
    assert later == [2.0, 1.0]
    assert w.url is None
    assert not [t for t in threading.enumerate() if t.name == "chainrule-watch"]


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"host": "evil.example:80"}, {"origin": "http://evil.example"}],
)
def test_pages_of_other_sites_are_refused(headers):
    with chainrule.watch() as w:
        w(cost=1.0)
        for path in ("/", "/events"):
            connection, response = get(w.url, path, **headers)
            assert response.status == 403
            connection.close()
        connection, response = get(w.url, "/other")
        assert response.status == 404
        connection.close()


def test_what_cannot_be_recorded_does_not_end_the_loop(caplog):
    class Broken:
        def __array__(self, *args, **kwargs):
            raise RuntimeError("no array today")

    with chainrule.watch() as w, caplog.at_level(logging.WARNING):
        w(cost=1.0, fields={"f": Broken()})
        w(cost=1.0)
    assert [frame.step for frame in w.frames] == [0]
    assert "no array today" in data_of(unescape(w.html()))["note"]
    assert "no array today" in caplog.text


def test_inside_jit_the_page_says_what_to_do():
    w = chainrule.watch()
    jax.jit(lambda x: w(cost=x))(1.0)
    assert "jax.debug.callback" in data_of(unescape(w.html()))["note"]
    jax.jit(lambda x: jax.debug.callback(lambda cost: w(cost=cost), x))(2.0)
    jax.effects_barrier()
    assert w.frames[0].cost == 2.0


def test_errors_of_the_loop_arrive_and_end_the_server():
    w = chainrule.watch()

    def loop():
        with w:
            w(cost=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert w.url is None


def rosenbrock(x):
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


@pytest.mark.parametrize("method", ["L-BFGS-B", "Nelder-Mead", "SLSQP"])
def test_callback_of_scipy(method):
    seen = []
    w = chainrule.watch()
    for callback in (lambda xk: seen.append(xk.copy()), w.callback):
        scipy.optimize.minimize(
            rosenbrock, [-1.0, 1.5], method=method, callback=callback, options={"maxiter": 20}
        )
    np.testing.assert_allclose([f.inputs["inputs"] for f in w.frames], seen, rtol=1e-5)
    costs = [rosenbrock(x) for x in seen]
    assert [f.cost for f in w.frames] in ([None] * len(seen), [pytest.approx(c) for c in costs])


def test_callback_of_minimize():
    w = chainrule.watch()
    found = chainrule.minimize(rosenbrock, jnp.array([-1.0, 1.5]), callback=w.callback)
    assert [f.cost for f in w.frames] == [s.value for s in found.history][: len(w.frames)]
    assert w.frames[-1].step == found.evaluations
    assert w.frames[0].gradients == {"gradient": found.history[0].gradient}


def residuals(x, _):
    return jnp.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


@pytest.mark.parametrize(
    ("solver", "solve", "function", "share"),
    [
        ("BFGS", "minimise", lambda x, _: rosenbrock(x), 1.0),
        ("LevenbergMarquardt", "least_squares", residuals, 0.5),
    ],
)
def test_steps_of_optimistix(solver, solve, function, share):
    optimistix = pytest.importorskip("optimistix")
    w = chainrule.watch()
    chosen = getattr(optimistix, solver)(rtol=1e-4, atol=1e-4, verbose=w.verbose)
    start = jnp.array([-1.0, 1.5])
    found = getattr(optimistix, solve)(function, chosen, start, max_steps=20, throw=False)
    jax.effects_barrier()
    assert len(w.frames) == found.stats["num_steps"]
    np.testing.assert_allclose(w.frames[0].inputs["inputs"], start)
    for frame in w.frames:
        expected = share * float(rosenbrock(frame.inputs["inputs"]))
        assert frame.cost == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_the_cell_of_a_notebook_follows_the_run_and_keeps_it():
    core = pytest.importorskip("IPython.core.interactiveshell")
    capture = pytest.importorskip("IPython.utils.capture")
    shell = core.InteractiveShell.instance()
    try:
        with (
            capture.capture_output() as shown,
            chainrule.watch("In a cell", open_browser=True) as w,
        ):
            address = w.url
            w(cost=1.0)
    finally:
        shell.history_manager.end_session()
        core.InteractiveShell.clear_instance()
    live, kept = (output.data["text/html"] for output in shown.outputs)
    assert f'src="{address}/"' in live
    assert [frame["cost"] for frame in data_of(unescape(kept))["frames"]] == [1.0]


def test_wrong_options():
    with pytest.raises(InputError, match="cost=value"):
        chainrule.watch()(1.5)
    with pytest.raises(InputError, match="max_frames"):
        chainrule.watch(max_frames=2)


def test_a_tab_is_opened_where_that_is_asked_for(monkeypatch, capsys):
    opened = []

    def browser(url):
        opened.append(url)
        _, response = get(url, "/events")  # a browser that comes
        threading.Thread(target=response.read).start()
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    with chainrule.watch(open_browser=True) as w:
        assert opened == [w.url]
    with chainrule.watch() as w:  # nothing is a terminal here
        assert capsys.readouterr().err == f"Watch the run at {w.url}\n"
    assert len(opened) == 1
    assert repr(w) == "<Watch 'A run': 0 steps, 0 kept>"
