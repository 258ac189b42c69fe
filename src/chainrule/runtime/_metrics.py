"""Metrics, parameters and artifacts of a run.

The local log has the peer's layout, below the run's folder:

    logs/metrics.csv        timestamp,key,value,step
    logs/parameters.json    one object
    logs/artifacts/         flat copies

and nothing of it exists before something is logged. With `mlflow_tracking_uri` set the same calls go to an
MLflow store instead.
"""

from __future__ import annotations

import csv
import json
import shutil
import threading
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from chainrule._errors import InputError, StorageError
from chainrule._whole_files import whole_file, write_whole
from chainrule.runtime._runs import Run, current_run


class RunLog(Protocol):
    """Where the log of one run goes."""

    def log_metric(self, key: str, value: float, step: int | None = None) -> None:
        """Record one value of a metric."""

    def log_parameter(self, key: str, value: Any) -> None:
        """Record a parameter."""

    def log_artifact(self, path: Path) -> None:
        """Keep a copy of a file."""

    def close(self, *, failed: bool = False) -> None:
        """Finish; nothing is logged afterwards."""


def open_log(run: Run) -> RunLog:
    """The log that the run's settings ask for."""
    if run.config.mlflow_tracking_uri:
        from chainrule.runtime._mlflow import MlflowLog

        return MlflowLog(run.config)
    return LocalLog(run)


class LocalLog:
    """Logs into files of the run's folder."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps: Counter[str] = Counter()
        self._parameters: dict[str, Any] = {}
        self._lock = threading.Lock()

    def log_metric(self, key: str, value: float, step: int | None = None) -> None:
        """Append a row to `metrics.csv`; the step counts up per key when it is not given."""
        with self._lock:
            if step is None:
                step = self._steps[key]
            self._steps[key] = step + 1
            self._append([datetime.now().isoformat(), key, value, step])

    def _append(self, row: list[Any]) -> None:
        file = self._folder() / "metrics.csv"
        try:
            with file.open("a", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                if stream.tell() == 0:
                    writer.writerow(["timestamp", "key", "value", "step"])
                writer.writerow(row)
        except OSError as error:
            raise _unwritable(file, error) from error

    def log_parameter(self, key: str, value: Any) -> None:
        """Rewrite `parameters.json` with one more parameter."""
        with self._lock:
            self._parameters[key] = value
            text = json.dumps(self._parameters, indent=2, default=str)
            file = self._folder() / "parameters.json"
            try:
                write_whole(file, [text.encode()])
            except OSError as error:
                raise _unwritable(file, error) from error

    def log_artifact(self, path: Path) -> None:
        """Copy a file into `artifacts/` under its own name."""
        with self._lock:
            target = self._folder() / "artifacts" / path.name
            try:
                target.parent.mkdir(exist_ok=True)
                with whole_file(target) as temporary:
                    shutil.copy2(path, temporary)
            except OSError as error:
                raise _unwritable(target, error) from error

    def close(self, *, failed: bool = False) -> None:
        """Nothing is kept open between calls."""

    def _folder(self) -> Path:
        folder = self._run.folder / "logs"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        return folder


def _unwritable(file: Path, error: OSError) -> StorageError:
    return StorageError(f"Cannot write {file}: {error.strerror}.", details={"file": str(file)})


def _log_of_current_run() -> RunLog:
    run = current_run.get()
    if run is None:
        raise InputError(
            "Nothing to log into: log_metric, log_parameter and log_artifact work inside an endpoint "
            "call. A thread you start yourself inherits the run with contextvars.copy_context().run.",
            code="no_run",
        )
    return run.log


def log_metric(key: str, value: float, step: int | None = None) -> None:
    """Record one value of a metric of the current run.

    Args:
        key: name of the metric.
        value: a number.
        step: position in the series; counts up per key when not given.

    Raises:
        InputError: called outside of an endpoint call (`no_run`).
    """
    _log_of_current_run().log_metric(key, float(value), step)


def log_parameter(key: str, value: Any) -> None:
    """Record a parameter of the current run; values that JSON cannot hold are stored as text.

    Raises:
        InputError: called outside of an endpoint call (`no_run`).
    """
    _log_of_current_run().log_parameter(key, value)


def log_artifact(local_path: str | Path) -> None:
    """Keep a copy of a file with the current run.

    Raises:
        InputError: called outside of an endpoint call (`no_run`), or there is no such file
            (`file_missing`).
    """
    log = _log_of_current_run()
    if not Path(local_path).is_file():
        raise InputError(
            f"log_artifact expected a regular file at {str(local_path)!r}; there is none.",
            code="file_missing",
        )
    log.log_artifact(Path(local_path))
