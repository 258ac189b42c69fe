"""Folders for files of this user, by the XDG convention: caches, and state that has to last."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """For what can be made again: `$XDG_CACHE_HOME/chainrule/…`, by default in `~/.cache`."""
    return _base("XDG_CACHE_HOME", ".cache").joinpath("chainrule", *parts)


def state_folder(*parts: str) -> Path:
    """For what has to last: `$XDG_STATE_HOME/chainrule/…`, by default in `~/.local/state`."""
    return _base("XDG_STATE_HOME", ".local/state").joinpath("chainrule", *parts)


def _base(variable: str, otherwise: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():  # the convention says to ignore relative paths
        return given
    try:
        return Path.home() / otherwise
    except RuntimeError as error:
        raise FileNotFoundError(
            f"This user has no home folder for files of Chainrule. Set {variable} to an absolute path."
        ) from error
