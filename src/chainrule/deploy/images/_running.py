"""Containers that were started here: which there are, and their end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule import _folders
from chainrule._errors import InputError
from chainrule.deploy.images._engine import Engine


def state_folder() -> Path:
    """Where the tokens of this user's containers are."""
    return _folders.state_folder("containers")


@dataclass(frozen=True)
class ContainerFacts:
    """A container as a listing shows it.

    Attributes:
        name: by which the engine knows it.
        component: what it serves.
        image_id: that it was started from.
        state: `running`, `exited`, ….
        url: where it answers.
        owned: whether a process will remove it when it ends.
    """

    name: str
    component: str
    image_id: str
    state: str
    url: str
    owned: bool

    @property
    def token(self) -> str | None:
        """Its token, where this user started it."""
        file = state_folder() / self.name / "token"
        return file.read_text() if file.is_file() else None


def list_containers(engine: Engine) -> list[ContainerFacts]:
    """Every container that was started here, dead ones included."""
    template = "{{.Names}}"
    asked = ("ps", "--all", "--filter", "label=chainrule.container", "--format", template)
    found = {name: inspect_container(engine, name) for name in engine.ask(*asked).split()}
    # One that has just been removed is none any more.
    return [_facts(name, facts) for name, facts in found.items() if facts is not None]


def inspect_container(engine: Engine, name: str) -> dict[str, Any] | None:
    """What the engine knows of a container; `None` when there is none of this name."""
    done = engine.run(["container", "inspect", name])
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


def _facts(name: str, facts: Mapping[str, Any]) -> ContainerFacts:
    labels = facts["Config"]["Labels"]
    return ContainerFacts(
        name=name,
        component=labels["chainrule.container"],
        image_id=labels["chainrule.image"],
        state=facts["State"]["Status"],
        url=f"http://127.0.0.1:{labels['chainrule.port']}",
        owned=labels["chainrule.owned"] == "true",
    )


def stop_container(engine: Engine, name: str) -> None:
    """Stop and remove a container of ours.

    Raises:
        InputError: there is no such container (`container_missing`).
    """
    _check_container(engine, name)
    remove_container(engine, name)


def container_log(engine: Engine, name: str, lines: int | None = None) -> str:
    """What a container has written, errors included; its last lines where a number is given.

    Raises:
        InputError: there is no such container (`container_missing`).
    """
    _check_container(engine, name)
    return engine.log(name, lines)


def _check_container(engine: Engine, name: str) -> None:
    if inspect_container(engine, name) is None:
        raise InputError(
            f"There is no container {name!r}. `chainrule image ps` shows those of components.",
            code="container_missing",
        )


def remove_container(engine: Engine, name: str) -> None:
    """Stop and remove a container, if it is there, and its token."""
    engine.run(["stop", "--time", "5", name])
    engine.run(["rm", "--force", name])
    shutil.rmtree(state_folder() / name, ignore_errors=True)
