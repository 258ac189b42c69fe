"""What a catalogue knows of one version of a component, and what is asked of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chainrule._errors import InputError, TransportError
from chainrule.client.internal import InterfaceField, read_interface
from chainrule.runtime.internal import Document


@dataclass(frozen=True)
class CatalogueField:
    """One array, or other value, that a component takes or returns.

    Attributes:
        side: `inputs` or `outputs`.
        path: where it is, as `mesh.points` or `loads.[].force`.
        type: its type in words, such as `Float64[n, 3]` or `string`.
        differentiable: whether derivatives exist for it.
    """

    side: str
    path: str
    type: str
    differentiable: bool = False


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One version of a component.

    Attributes:
        name: of the component.
        version: of the component.
        description: its first line of text.
        owner: who answers for it; empty if no owner was named.
        repository: of its image, with the registry.
        digest: of its image.
        artifact: digest of its description in the same repository.
        endpoints: that it offers.
        fields: that it takes and returns.
    """

    name: str
    version: str
    description: str = ""
    owner: str = ""
    repository: str
    digest: str
    artifact: str = ""
    endpoints: tuple[str, ...] = ()
    fields: tuple[CatalogueField, ...] = ()

    @classmethod
    def of_document(
        cls, document: Mapping[str, Any], *, repository: str, digest: str, owner: str = ""
    ) -> CatalogueEntry:
        """What the OpenAPI document of a component says.

        Raises:
            InputError: it has no version by which it can be compared (`no_version`).
        """
        info = document["info"]
        parse_version(info["version"])
        fields = (
            CatalogueField(side, path, _type(field), field.differentiable)
            for side in ("inputs", "outputs")
            for path, field in read_interface(document, side).items()
        )
        return cls(
            name=info["title"],
            version=info["version"],
            description=(info.get("description") or "").strip().partition("\n")[0],
            owner=owner,
            repository=repository,
            digest=digest,
            endpoints=tuple(Document(document).endpoints),
            fields=tuple(fields),
        )

    @classmethod
    def from_json(cls, content: Any) -> CatalogueEntry:
        """Read what `to_json` has written.

        Raises:
            TransportError: it is something else (`bad_catalogue`).
        """
        try:
            facts = dict(content)
            facts["fields"] = tuple(CatalogueField(**each) for each in facts["fields"])
            facts["endpoints"] = tuple(facts["endpoints"])
            return cls(**facts)
        except (TypeError, ValueError, KeyError) as error:
            raise TransportError(
                "The catalogue has an entry that this version of Chainrule cannot read: it is damaged, or "
                "newer. `chainrule search --rebuild` writes it anew.",
                code="bad_catalogue",
            ) from error

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def image(self) -> str:
        """The reference of the image, as `Component.from_image` takes it."""
        return f"{self.repository}@{self.digest}"


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a component is searched by; a component has to fit all that is given.

    Attributes:
        text: words that occur in the name, the description or the owner.
        inputs: a path, a type such as `Float64`, or `path:type`, each for one of its inputs.
        outputs: the same for outputs.
        endpoints: that it offers.
        differentiable: whether the inputs and outputs that were asked for have derivatives.
    """

    text: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    differentiable: bool = False

    def fits(self, entry: CatalogueEntry) -> bool:
        """Whether an entry is what is searched."""
        said = f"{entry.name} {entry.description} {entry.owner}".lower()
        return (
            all(word in said for word in self.text.lower().split())
            and set(self.endpoints) <= set(entry.endpoints)
            and all(self._has(entry, "inputs", wanted) for wanted in self.inputs)
            and all(self._has(entry, "outputs", wanted) for wanted in self.outputs)
        )

    def _has(self, entry: CatalogueEntry, side: str, wanted: str) -> bool:
        path, colon, type = wanted.lower().rpartition(":")
        return any(
            field.side == side
            and (field.differentiable or not self.differentiable)
            and (
                path in field.path.lower() and field.type.lower().startswith(type)
                if colon
                else type in field.path.lower() or field.type.lower().startswith(type)
            )
            for field in entry.fields
        )


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers of a version such as `1.4.2`.

    Raises:
        InputError: it has none (`no_version`).
    """
    found = re.fullmatch(r"v?(\d+(?:\.\d+)*)", text)
    if found is None:
        raise InputError(
            f"A catalogue compares versions, and {text!r} is not a version: write `version: 1.0.0` in "
            "component.yaml and build the image again.",
            code="no_version",
        )
    return tuple(int(number) for number in found[1].split("."))


def newest(entries: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """The highest version of each component, by name."""
    found: dict[str, CatalogueEntry] = {}
    for entry in sorted(entries, key=lambda each: parse_version(each.version)):
        found[entry.repository] = entry
    return sorted(found.values(), key=lambda each: (each.name, each.repository))


def _type(field: InterfaceField) -> str:
    if not field.is_array:
        return field.accepts
    dtype = (field.dtype or "array").capitalize()
    if field.shape is None:
        return f"{dtype}[...]"
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in field.shape)}]"
