"""One call of an endpoint is a run: it knows its component's settings and where its files go.

The run that is under way is a context variable, so `require_file`, `log_metric` and the path types find
their folder in author code without process-wide state, in every thread and task on its own. Threads that
the author starts inherit it with `contextvars.copy_context().run`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from chainrule._errors import InputError, StorageError
from chainrule.runtime._config import ComponentConfig

if TYPE_CHECKING:
    from chainrule.runtime._metrics import RunLog

__all__ = ["Run", "activate", "checked_run_id", "current_run", "get_config"]

_SAFE_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}")

current_run: ContextVar[Run | None] = ContextVar("current_run", default=None)


def checked_run_id(run_id: str) -> str:
    """The id of a run, if it is one.

    Raises:
        InputError: it is not of the safe form (`bad_run_id`).
    """
    if isinstance(run_id, str) and _SAFE_ID.fullmatch(run_id):
        return run_id
    found = f"one of {len(run_id)} characters" if isinstance(run_id, str) else type(run_id).__name__
    raise InputError(
        "A run id has 1 to 128 letters, digits, '.', '_' or '-', and is not '.' or '..'; "
        f"found {found}.",
        code="bad_run_id",
    )


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
        self._given_id = None if run_id is None else checked_run_id(run_id)
        self._is_flat = is_flat
        self._log: RunLog | None = None

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
    def log(self) -> RunLog:
        """Where metrics, parameters and artifacts of this run go; opened now."""
        if self._log is None:
            from chainrule.runtime._metrics import open_log

            self._log = open_log(self)
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
    """The settings of the component whose code is running here, or the defaults outside of any."""
    run = current_run.get()
    return ComponentConfig() if run is None else run.config
