"""`push_image`: an image into its registry, described in the catalogue, unless it breaks callers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chainrule._errors import InputError, TransportError
from chainrule.client.internal import Change
from chainrule.deploy._registry import Reference
from chainrule.deploy.catalogue._catalogue import Catalogue, version_exists
from chainrule.deploy.catalogue._entries import CatalogueEntry
from chainrule.deploy.images import ComponentImage, Engine, RunOptions, ask_image, find_engine

_SHOWN = 10


@dataclass(frozen=True)
class PushedImage:
    """What came of a push.

    Attributes:
        entry: of the catalogue.
        was_pushed: whether it was pushed; otherwise the registry had it already.
        changes: what callers of the version before will notice.
    """

    entry: CatalogueEntry
    was_pushed: bool
    changes: tuple[Change, ...] = ()


def push_image(
    image: str,
    *,
    owner: str = "",
    allow_breaking: bool = False,
    engine: Engine | None = None,
    on_line: Callable[[str], Any] = lambda line: None,
) -> PushedImage:
    """Push an image of a component to its registry, and describe it in the catalogue there.

    The interface of the component is compared with that of the version before. The comparison and the push
    are two steps: two people who push at the same moment are not kept apart.

    Args:
        image: its name, with the registry: `registry.example/team/heat:1.0.0`.
        owner: who answers for the component.
        allow_breaking: push a version that breaks callers, too.
        engine: made by `find_engine`.
        on_line: called with every line that the engine writes.

    Raises:
        InputError: the component has no version (`no_version`), the version is taken by another image
            (`version_exists`), or the interface breaks callers (`breaks_callers`).
        CapabilityError: the registry refuses (`registry_denied`).
        TransportError: it cannot be reached, or the push fails (`unreachable`, `engine_failed`).
    """
    engine = engine or find_engine()
    reference = Reference.parse(image)
    found = ComponentImage.find(engine, image)
    endpoint = "schema" if found.is_native else "openapi-schema"
    document = json.loads(ask_image(image, [endpoint], RunOptions(), engine=engine)[0])
    catalogue = Catalogue.of_image(reference)
    changes = catalogue.check(reference, document)
    known = catalogue.find(reference, document["info"]["version"])
    if known is not None:
        if catalogue.config_digest(known).removeprefix("sha256:") != found.id.removeprefix(
            "sha256:"
        ):
            raise version_exists(known)
        return PushedImage(known, was_pushed=False)
    if not allow_breaking:
        _refuse_breaks(document["info"], changes)
    code, tail = engine.stream(["push", image], on_line)
    if code:
        raise TransportError(
            f"{image} cannot be pushed: {' '.join(tail[-2:])[-500:]}", code="engine_failed"
        )
    return PushedImage(catalogue.publish(reference, document, owner=owner), True, tuple(changes))


def _refuse_breaks(info: dict[str, Any], changes: list[Change]) -> None:
    breaks = [f"  {change.where}: {change.what}" for change in changes if change.breaks]
    if not breaks:
        return
    more = len(breaks) - _SHOWN
    lines = [*breaks[:_SHOWN], *([f"  and {more} more"] if more > 0 else [])]
    major = int(str(info["version"]).lstrip("v").partition(".")[0])
    raise InputError(
        f"{info['title']} {info['version']} breaks callers of the version before it:\n"
        + "\n".join(lines)
        + f"\nCall it {major + 1}.0.0, or pass --allow-breaking.",
        code="breaks_callers",
    )
