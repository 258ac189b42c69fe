"""One call of an endpoint is a run: it knows its component's settings, where its files go and what it logs.

The run that is under way is a context variable, so `require_file`, `log_metric` and the path types find
their folder in author code without process-wide state, in every thread and task on its own. Threads that
the author starts inherit it with `contextvars.copy_context().run`.

Metrics, parameters and artifacts have Tesseract's layout, below the run's folder:

    logs/metrics.csv        timestamp,key,value,step
    logs/parameters.json    one object
    logs/artifacts/         flat copies

and nothing of it exists before something is logged. With `mlflow_tracking_uri` set the same calls go to an
MLflow store instead. Its client object is used directly, never `mlflow.set_tracking_uri` or
`mlflow.start_run`: those change state of the whole process, and two components with two stores would write
into each other's.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from chainrule._describe import describe_value
from chainrule._errors import InputError, StorageError, missing_dependency
from chainrule._files import whole_file, write_whole
from chainrule._tracing import current_traceparent
from chainrule._visible import visible
from chainrule.runtime._config import ComponentConfig

# What existing components import from `tesseract_core.runtime.config`.
__all__ = ["Run", "activate", "current_run", "get_config"]

_SAFE_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}")

current_run: ContextVar[Run | None] = ContextVar("current_run", default=None)

outside_config: ContextVar[ComponentConfig | None] = ContextVar("outside_config", default=None)
"""The settings for code that runs in no component: unit tests of schemas, for example."""


class Run:
    """What one endpoint call may use besides its arguments. Costs nothing until it is used.

    Args:
        config: the component's settings.
        run_id: letters, digits, `.`, `_` and `-`, at most 128; random when not given.
        is_flat: put files directly into `output_path`, as the command line does, instead of a folder
            per run.

    Raises:
        InputError: the id is not of the safe form (`bad_run_id`).
    """

    def __init__(
        self, config: ComponentConfig, *, run_id: str | None = None, is_flat: bool = False
    ) -> None:
        self.config = config
        self._given_id = None if run_id is None else self.check_id(run_id)
        self._is_flat = is_flat
        self._log: LocalLog | MlflowLog | None = None

    @staticmethod
    def current() -> Run | None:
        """The run whose code is running here; `None` outside of any."""
        return current_run.get()

    @staticmethod
    def check_id(run_id: str) -> str:
        """The id of a run, if it is one.

        Raises:
            InputError: it is not of the safe form (`bad_run_id`).
        """
        if isinstance(run_id, str) and _SAFE_ID.fullmatch(run_id):
            return run_id
        if not isinstance(run_id, str):
            raise InputError(
                f"Expected `run_id` as text; found {describe_value(run_id)}. Inputs are one dictionary by "
                "name, the first argument.",
                code="bad_run_id",
            )
        raise InputError(
            "A run id has 1 to 128 letters, digits, '.', '_' or '-', and is not '.' or '..'; "
            f"found one of {len(run_id)} characters.",
            code="bad_run_id",
        )

    @cached_property
    def reuse(self) -> Counter[str]:
        """How often something kept from earlier calls was there (`results_hit`, `residuals_miss`, …)."""
        return Counter()

    @cached_property
    def run_id(self) -> str:
        """The id that was given, or a random one."""
        return self._given_id or uuid.uuid4().hex

    @cached_property
    def folder(self) -> Path:
        """The folder of this run, created now. A second run of the same id gets one beside it."""
        root = self.config.output_path
        try:
            if self._is_flat:
                root.mkdir(parents=True, exist_ok=True)
                return root
            return _new_folder(root, f"run_{self.run_id}")
        except OSError as error:
            raise StorageError(
                f"Cannot create a run folder in {root}: {error.strerror}. Set output_path to a folder "
                "that can be written.",
                details={"folder": str(root)},
            ) from error

    @property
    def log(self) -> LocalLog | MlflowLog:
        """Where metrics, parameters and artifacts of this run go; opened now."""
        if self._log is None:
            self._log = (
                MlflowLog(self.config) if self.config.mlflow_tracking_uri else LocalLog(self)
            )
        return self._log

    def close(self, *, failed: bool = False) -> None:
        """Finish the log, if there is one."""
        if self._log is not None:
            self._log.close(failed=failed)


def _new_folder(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    folder, count = root / name, 1
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            count += 1
            folder = root / f"{name}.{count}"


def count_reuse(kind: str, *, found: bool) -> None:
    """Count, for the run under way, whether something that may be kept from earlier calls was there.

    Args:
        kind: `results` or `residuals`.
        found: whether it was.
    """
    run = current_run.get()
    if run is not None:
        run.reuse[f"{kind}_{'hit' if found else 'miss'}"] += 1


@contextmanager
def activate(run: Run) -> Iterator[Run]:
    """Make a run the current one, and close it at the end."""
    token = current_run.set(run)
    failed = True
    try:
        yield run
        failed = False
    finally:
        current_run.reset(token)
        run.close(failed=failed)


def get_config() -> ComponentConfig:
    """The settings of the component whose code is running here.

    Outside of any, where a program validates models itself, those of `outside_config`; or the defaults, with
    the folders that `TESSERACT_INPUT_PATH` and `TESSERACT_OUTPUT_PATH` name.
    """
    run = current_run.get()
    if run is not None:
        return run.config
    return outside_config.get() or ComponentConfig(**_folders_of_the_environment())


def _folders_of_the_environment() -> dict[str, Any]:
    variables = {name: f"TESSERACT_{name.upper()}" for name in ("input_path", "output_path")}
    return {
        name: Path(os.environ[variable])
        for name, variable in variables.items()
        if os.environ.get(variable)
    }


class LocalLog:
    """Logs into files of the run's folder."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps: Counter[str] = Counter()
        self._parameters: dict[str, Any] = {}
        # Held while files are written: an author may log from several threads, and rows must not mix.
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


def _log_of_current_run() -> LocalLog | MlflowLog:
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


_ARGUMENTS = ("experiment_id", "run_name", "tags", "description", "parent_run_id", "run_id")


class MlflowLog:
    """Logs into one MLflow run, which ends with the endpoint call."""

    def __init__(self, config: ComponentConfig) -> None:
        self._client = _open_client(config.mlflow_tracking_uri)
        arguments = dict(config.mlflow_run_extra_args)
        unknown = sorted(set(arguments) - set(_ARGUMENTS))
        if unknown:
            raise InputError(
                f"mlflow_run_extra_args has the unknown key {unknown[0]!r}; it takes "
                f"{', '.join(_ARGUMENTS)}.",
                code="bad_setting",
            )
        self._steps: dict[str, int] = {}
        self._is_own = "run_id" not in arguments
        self._run_id = arguments.get("run_id") or self._start(arguments)

    def _start(self, arguments: dict[str, Any]) -> str:
        tags = dict(arguments.get("tags") or {})
        if "description" in arguments:
            tags["mlflow.note.content"] = arguments["description"]
        if "parent_run_id" in arguments:
            tags["mlflow.parentRunId"] = arguments["parent_run_id"]
        run = self._checked(
            self._client.create_run,
            experiment_id=arguments.get("experiment_id", "0"),
            run_name=arguments.get("run_name"),
            tags=tags,
        )
        return run.info.run_id

    def log_metric(self, key: str, value: float, step: int | None = None) -> None:
        """Record one value of a metric."""
        if step is None:
            step = self._steps.get(key, 0)
        self._steps[key] = step + 1
        stamp = int(time.time() * 1000)
        self._checked(self._client.log_metric, self._run_id, key, value, stamp, step)

    def log_parameter(self, key: str, value: Any) -> None:
        """Record a parameter."""
        self._checked(self._client.log_param, self._run_id, key, value)

    def log_artifact(self, path: Path) -> None:
        """Upload a file."""
        self._checked(self._client.log_artifact, self._run_id, str(path))

    def close(self, *, failed: bool = False) -> None:
        """End the run, if it was started here."""
        if self._is_own:
            status = "FAILED" if failed else "FINISHED"
            self._checked(self._client.set_terminated, self._run_id, status)

    def _checked(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return call(*args, **kwargs)
        except MlflowException as error:
            raise StorageError(
                f"The MLflow store refused: {error.message}", code="mlflow_failed"
            ) from error


def _open_client(uri: str) -> Any:
    try:
        from mlflow import MlflowClient
    except ModuleNotFoundError as error:
        raise missing_dependency(
            "mlflow_tracking_uri is set, and needs", "mlflow", "'chainrule[mlflow]'"
        ) from error
    return MlflowClient(tracking_uri=uri)


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message", "run_id", "trace_id", …}`.

    Fields of a record's `facts` (`log.info(…, extra={"facts": {…}})`) become fields of the object. What
    is not known is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        run = current_run.get()
        if run is not None:
            content["run_id"] = run.run_id
        traceparent = current_traceparent()
        if traceparent is not None:
            content["trace_id"] = traceparent.split("-")[1]
        content |= getattr(record, "facts", {})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(content, default=str).decode()


class _TextFormatter(logging.Formatter):
    """`LEVEL message`. A message may quote an author or a caller: its control characters are written out."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record as lines."""
        return visible(super().format(record))


def log_handler(log_format: str) -> logging.Handler:
    """A handler that writes to standard error.

    Args:
        log_format: `text` or `json`.
    """
    handler = logging.StreamHandler()
    is_json = log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else _TextFormatter())
    return handler
