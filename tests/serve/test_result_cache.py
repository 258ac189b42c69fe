"""Equal requests are computed once, where the operator wants that: counted in the component."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from chainrule._content_store import SharedFolder
from chainrule.client import Component

JOB_COMPONENT = Path(__file__).with_name("job_component.py")


def runs(trace):
    return trace.read_text().count("\n") if trace.exists() else 0


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_equal_requests_are_computed_once(start_server, tmp_path, where):
    folder = str(tmp_path / "cache") if where == "folder" else None
    config = {"cache": ["job_component"], "cache_folder": folder}
    served = start_server(components=str(JOB_COMPONENT), workers=1, config=config)
    trace = tmp_path / "trace"
    with Component.from_url(served.url, share_memory=False) as component:
        inputs = {"x": np.array([1.0, 2.0]), "trace": str(trace)}
        for _ in range(3):
            np.testing.assert_array_equal(component.apply(inputs)["y"], [2.0, 4.0])
        assert runs(trace) == 1
        component.apply({**inputs, "x": np.array([1.0, 2.5])})
        assert runs(trace) == 2
        for _ in range(2):
            jacobian = component.jacobian(inputs, ["x"], ["y"])
            np.testing.assert_array_equal(jacobian["y"]["x"], 2 * np.eye(2))
        for _ in range(2):
            with pytest.raises(Exception, match="mesh is empty"):
                component.apply({**inputs, "action": "raise"})
        assert runs(trace) == 4, "failures are not kept"
    metrics = served.get("/metrics").body.decode()
    counted = 'chainrule_results_reuse_total{component="job_component",outcome='
    assert f'{counted}"hit"}} 3\n' in metrics  # two of apply, one of the Jacobian


def test_a_folder_serves_several_servers_and_restarts_but_not_other_code(start_server, tmp_path):
    config = {"cache": ["*"], "cache_folder": str(tmp_path / "cache")}
    changed = tmp_path / "job_component.py"
    changed.write_text(JOB_COMPONENT.read_text().replace("y=2 * inputs.x", "y=3 * inputs.x"))
    trace = tmp_path / "trace"
    inputs = {"x": [1.0], "trace": str(trace)}
    found = []
    for source in (JOB_COMPONENT, JOB_COMPONENT, changed):
        served = start_server(components=str(source), workers=2, config=config)
        with Component.from_url(served.url, share_memory=False) as component:
            found.append(float(component.apply(inputs)["y"][0]))
    assert found == [2.0, 2.0, 3.0]
    assert runs(trace) == 2


def test_nothing_is_kept_unless_asked_for(start_server, tmp_path):
    served = start_server(components=str(JOB_COMPONENT), workers=0, config={"cache": ["another"]})
    trace = tmp_path / "trace"
    for _ in range(2):
        served.post("/apply", {"inputs": {"x": [1.0], "trace": str(trace)}})
    assert runs(trace) == 2


def test_the_folder_is_bounded_and_forgets_what_is_not_used(tmp_path):
    store = SharedFolder(tmp_path, max_bytes=1000)
    for k in range(4):
        store.write(f"piece{k}", bytes([k]) * 300)
        store.read("piece0")
    assert store.read("piece0") is not None, "it was used all the time"
    assert store.read("piece1") is None
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1000
    store.write("large", b"x" * 1001)
    assert store.read("large") is None


def _write(folder, own):
    store = SharedFolder(folder, max_bytes=50_000)
    for k in range(200):
        store.write(f"piece{k % 20}", bytes([own]) * 4000)
        content = store.read(f"piece{(k + 7) % 20}")
        assert content is None or (len(content) == 4000 and len(set(content)) == 1)


def test_processes_never_see_half_a_piece(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write, args=(tmp_path, own)) for own in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
