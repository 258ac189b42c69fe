"""From a job's registry to handles."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.client import Component


def read_registry(file: str | Path | None = None, **options: Any) -> list[Component]:
    """A handle to every server of a job.

    Args:
        file: the registry; the one that `CHAINRULE_REGISTRY` names when not given, as it does within the
            job.
        **options: as `Component.from_url` takes them.

    Raises:
        InputError: there is no such file, or it is no registry (`registry_missing`).
    """
    path = file or os.environ.get("CHAINRULE_REGISTRY", "")
    try:
        content = json.loads(Path(path).read_text())
        urls = [server["url"] for server in content["servers"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"Expected the registry of a job of `chainrule deploy slurm` at {str(path)!r}: {error}.",
            code="registry_missing",
        ) from error
    return [Component.from_url(url, token=content["token"], **options) for url in urls]
