"""Metrics, parameters and artifacts in an MLflow store.

The client object is used directly, never `mlflow.set_tracking_uri` or `mlflow.start_run`: those change state
of the whole process, and two components with two stores would write into each other's.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from chainrule._errors import DefinitionError, InputError, StorageError
from chainrule.runtime._config import ComponentConfig

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
        raise DefinitionError(
            "mlflow_tracking_uri is set, but MLflow is not installed: pip install 'chainrule[mlflow]'.",
            code="framework_missing",
        ) from error
    return MlflowClient(tracking_uri=uri)
