"""`chainrule image list`, `ps`, `logs` and `stop`: images of components, and containers that run them."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._streams import write_text
from chainrule.cli._tables import table_text
from chainrule.deploy.images import (
    ComponentImage,
    ContainerFacts,
    Engine,
    container_log,
    find_engine,
    list_containers,
    list_images,
    stop_container,
)


def add_arguments(parser: ArgumentParser) -> None:
    """The containers, where the command is about some."""
    command = parser.get_default("command")
    if command == "image logs":
        parser.add_argument(
            "container", metavar="CONTAINER", help="its name in `chainrule image ps`"
        )
        parser.add_argument("--tail", type=int, metavar="LINES", help="the last lines only")
    if command == "image stop":
        parser.add_argument("containers", metavar="CONTAINER", nargs="*", help="their names")
        parser.add_argument("--all", action="store_true", help="every container of a component")
    parser.add_argument("--engine", metavar="ENGINE", help="podman or docker")


def run(options: Namespace) -> int:
    """List, show or stop."""
    engine = find_engine(options.engine)
    write_text(_COMMANDS[options.command](engine, options))
    return 0


def _list(engine: Engine, options: Namespace) -> str:
    rows = [_image_row(image) for image in list_images(engine)]
    return _table("images", ("component", "version", "image", "size", "kind"), rows, options.json)


def _image_row(image: ComponentImage) -> dict[str, str]:
    return {
        "component": image.component,
        "version": image.version,
        "image": " ".join(image.tags),
        "size": f"{image.size_bytes / 1e6:.0f} MB",
        "kind": "chainrule" if image.is_native else "tesseract",
    }


def _ps(engine: Engine, options: Namespace) -> str:
    rows = [_container_row(facts) for facts in list_containers(engine)]
    columns = ("container", "component", "state", "port", "until")
    return _table("containers", columns, rows, options.json)


def _container_row(facts: ContainerFacts) -> dict[str, str]:
    return {
        "container": facts.name,
        "component": facts.component,
        "state": facts.state,
        "url": facts.url,
        "port": facts.url.rpartition(":")[2],
        "until": "its process ends" if facts.owned else "stopped",
    }


def _logs(engine: Engine, options: Namespace) -> str:
    return container_log(engine, options.container, options.tail)


def _stop(engine: Engine, options: Namespace) -> str:
    known = {facts.name for facts in list_containers(engine)}
    wanted = sorted(known) if options.all else options.containers
    if not wanted and not options.all:
        raise InputError("Name the containers to stop, or pass --all.", code="bad_option")
    # All names are looked at before anything is stopped.
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(
            f"There is no container {unknown[0]!r} of a component; nothing was stopped. "
            "`chainrule image ps` shows them.",
            code="container_missing",
        )
    for name in wanted:
        stop_container(engine, name)
    return json.dumps({"stopped": wanted}) + "\n" if options.json else _lines(wanted)


def _lines(items: Sequence[str]) -> str:
    return "".join(f"{item}\n" for item in items)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[dict[str, Any]], as_json: bool
) -> str:
    if as_json:
        return json.dumps(rows) + "\n"
    return table_text(title, columns, [[row[column] for column in columns] for row in rows])


_COMMANDS = {"image list": _list, "image ps": _ps, "image logs": _logs, "image stop": _stop}
