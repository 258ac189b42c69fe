"""Metrics, parameters and artifacts: local files, or an MLflow store."""

import csv
import json
import threading

import pytest

from chainrule.errors import ComponentError, InputError, StorageError
from chainrule.runtime import ComponentConfig, component
from chainrule.runtime.experimental import log_artifact, log_metric, log_parameter
from chainrule.runtime.internal import Run


def make(folder, **config):
    @component(config={"output_path": folder, **config})
    def train(steps: int, fail: bool = False) -> float:
        for step in range(steps):
            log_metric("loss", 1 / (step + 1))
            log_metric("rate", 0.1, step=10 * step)
        if steps:
            log_parameter("steps", steps)
            log_parameter("odd", {1, 2})
            (folder / "model.txt").write_text("weights")
            log_artifact(folder / "model.txt")
        if fail:
            raise ValueError("diverged")
        return 0.0

    return train


def test_the_layout_of_a_run(tmp_path):
    make(tmp_path).call(
        "apply",
        {"inputs": {"steps": 3}},
        run=Run(ComponentConfig(output_path=tmp_path), run_id="a"),
    )
    logs = tmp_path / "run_a" / "logs"
    rows = list(csv.DictReader((logs / "metrics.csv").read_text().splitlines()))
    assert list(rows[0]) == ["timestamp", "key", "value", "step"]
    loss = [(float(row["value"]), int(row["step"])) for row in rows if row["key"] == "loss"]
    assert loss == [(1.0, 0), (0.5, 1), (1 / 3, 2)]
    assert [int(row["step"]) for row in rows if row["key"] == "rate"] == [0, 10, 20]
    assert json.loads((logs / "parameters.json").read_text()) == {"steps": 3, "odd": "{1, 2}"}
    assert (logs / "artifacts" / "model.txt").read_text() == "weights"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".partial")]


def test_nothing_is_created_when_nothing_is_logged(tmp_path):
    make(tmp_path / "none").apply({"steps": 0})
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_one_id_are_kept_apart(tmp_path):
    config = ComponentConfig(output_path=tmp_path)
    for _ in range(2):
        make(tmp_path).call("apply", {"inputs": {"steps": 1}}, run=Run(config, run_id="same"))
    assert sorted(p.name for p in tmp_path.glob("run_*")) == ["run_same", "run_same.2"]


def test_the_command_lines_runs_have_no_folder_of_their_own(tmp_path):
    run = Run(ComponentConfig(output_path=tmp_path), is_flat=True)
    make(tmp_path).call("apply", {"inputs": {"steps": 1}}, run=run)
    assert (tmp_path / "logs" / "metrics.csv").exists()


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "../x", "a\0", "x" * 129, "é", "a b"])
def test_unsafe_run_ids(run_id):
    with pytest.raises(InputError) as caught:
        Run(ComponentConfig(), run_id=run_id)
    assert caught.value.code == "bad_run_id"


def test_logging_outside_of_a_run():
    for call in (
        lambda: log_metric("a", 1),
        lambda: log_parameter("a", 1),
        lambda: log_artifact("a"),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code == "no_run"


def test_artifacts_have_to_exist(tmp_path):
    @component(config={"output_path": tmp_path})
    def wrong(x: int) -> int:
        log_artifact(tmp_path / "missing")
        return x

    with pytest.raises(InputError) as caught:
        wrong.apply({"x": 1})
    assert caught.value.code == "file_missing"


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        make(tmp_path, output_path=tmp_path / "file" / "below").apply({"steps": 1})


def test_threads_log_into_their_own_runs(tmp_path):
    component = make(tmp_path)
    configs = [(k, Run(ComponentConfig(output_path=tmp_path), run_id=str(k))) for k in range(1, 9)]
    threads = [
        threading.Thread(
            target=component.call, args=("apply", {"inputs": {"steps": k}}), kwargs={"run": run}
        )
        for k, run in configs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, _ in configs:
        rows = (tmp_path / f"run_{k}" / "logs" / "metrics.csv").read_text().splitlines()
        assert len(rows) == 1 + 2 * k


def test_threads_of_the_author_inherit_the_run(tmp_path):
    import contextvars

    @component(config={"output_path": tmp_path})
    def spawn(x: int) -> int:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(log_metric, "m", 1.0))
        thread.start()
        thread.join()
        return x

    spawn.apply({"x": 1})
    assert len(list(tmp_path.rglob("metrics.csv"))) == 1


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment(
        "probe", artifact_location=(folder / "artifacts").as_uri()
    )
    return client, uri, experiment


@pytest.mark.filterwarnings("ignore")
def test_an_mlflow_store(store, tmp_path):
    client, uri, experiment = store
    extra = {
        "experiment_id": experiment,
        "run_name": "first",
        "tags": {"who": "me"},
        "description": "d",
    }
    settings = {"mlflow_tracking_uri": uri, "mlflow_run_extra_args": extra}
    make(tmp_path, **settings).apply({"steps": 2})
    with pytest.raises(ComponentError, match="diverged"):
        make(tmp_path, **settings).apply({"steps": 1, "fail": True})
    runs = client.search_runs([experiment], order_by=["attributes.start_time ASC"])
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED"]
    first = runs[0]
    assert first.data.metrics == {"loss": 0.5, "rate": 0.1}
    assert first.data.params["steps"] == "2"
    assert (first.info.run_name, first.data.tags["who"]) == ("first", "me")
    history = client.get_metric_history(first.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 0.5)]
    assert [a.path for a in client.list_artifacts(first.info.run_id)] == ["model.txt"]
    assert not list(tmp_path.glob("run_*"))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_mistakes(store, tmp_path):
    client, uri, _ = store
    before = len(client.search_runs(["0"]))
    make(tmp_path, mlflow_tracking_uri=uri).apply({"steps": 0})
    assert len(client.search_runs(["0"])) == before  # nothing logged, no run
    wrong = {"mlflow_tracking_uri": uri, "mlflow_run_extra_args": {"colour": "red"}}
    with pytest.raises(InputError, match="colour"):
        make(tmp_path, **wrong).apply({"steps": 1})
    missing = {"mlflow_tracking_uri": uri, "mlflow_run_extra_args": {"experiment_id": "999"}}
    with pytest.raises(StorageError) as caught:
        make(tmp_path, **missing).apply({"steps": 1})
    assert caught.value.code == "mlflow_failed"
