"""`Catalogue`: the components whose images are below one prefix of a registry.

Three kinds of things in the registry belong to it:

- the images themselves;
- a description of each image, in its repository: a manifest whose `subject` is the image, with the OpenAPI
  document, so that what knows only the image finds it;
- the index, in the repository `PREFIX/catalogue`: one line of JSON for each version, so that a search is one
  download instead of two requests for every image.

Registries have no transactions. Two publishers who write the index at the same moment may lose a line; each
reads it back and writes again if its own is missing, and `rebuild` finds what was lost all the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chainrule._endpoints import DERIVATIVE_ENDPOINTS
from chainrule._errors import InputError, TransportError
from chainrule.client.internal import Change, compare_interfaces
from chainrule.deploy._registry import EMPTY, INDEX, MANIFEST, Reference, Registry, fallback_tag
from chainrule.deploy.catalogue._entries import CatalogueEntry, Query, newest, parse_version

_KIND = "application/vnd.chainrule.component.v1"
_ENTRY = "application/vnd.chainrule.component.config.v1+json"
_DOCUMENT = "application/vnd.chainrule.openapi.v1+json"
_INDEX_KIND = "application/vnd.chainrule.catalogue.v1"
_LINES = "application/vnd.chainrule.catalogue.v1+jsonl"
_TRIES = 5


class Catalogue:
    """The components below one prefix of a registry.

    Args:
        place: the registry, or the registry with a prefix, such as `registry.example/team`.

    Example:
        ```bash
        chainrule image push registry.example/team/heat:1.0.0 --owner simulation
        chainrule search registry.example/team --input Float64 --endpoint vector_jacobian_product
        ```
    """

    def __init__(self, place: str) -> None:
        host, _, self._prefix = place.removesuffix("/").partition("/")
        self._registry = Registry(host)
        self._index = f"{self._prefix}/catalogue" if self._prefix else "catalogue"

    @classmethod
    def of_image(cls, reference: Reference) -> Catalogue:
        """The catalogue that an image belongs to: that of its repository's folder."""
        folder = reference.repository.rpartition("/")[0]
        return cls(f"{reference.host}/{folder}")

    def entries(self) -> list[CatalogueEntry]:
        """Every version of every component, in the order in which they were published."""
        found = self._registry.find_manifest(self._index, "latest")
        if found is None:
            return []
        try:
            (layer,) = found.json()["layers"]
            lines = self._registry.blob(self._index, layer["digest"]).decode().splitlines()
            return [CatalogueEntry.from_json(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise TransportError(
                f"{self._registry.host}/{self._index}:latest is not a catalogue.",
                code="bad_catalogue",
            ) from error

    def search(self, query: Query, *, all_versions: bool = False) -> list[CatalogueEntry]:
        """The components that fit.

        Args:
            query: what they are searched by.
            all_versions: whether older versions count too.
        """
        entries = self.entries()
        return [
            entry for entry in (entries if all_versions else newest(entries)) if query.fits(entry)
        ]

    def check(self, reference: Reference, document: Mapping[str, Any]) -> list[Change]:
        """What a new version changes for callers of the version before it.

        That is the highest lower version with the same first number. A new first number may change
        everything.

        Args:
            reference: of the new image.
            document: OpenAPI document of the component in it.

        Raises:
            InputError: the component has no version (`no_version`).
        """
        version = parse_version(document["info"]["version"])
        own = [entry for entry in self.entries() if entry.repository == reference.name]
        lower = [
            entry
            for entry in own
            if parse_version(entry.version) < version
            and parse_version(entry.version)[0] == version[0]
        ]
        if not lower:
            return []
        last = max(lower, key=lambda entry: parse_version(entry.version))
        return compare_interfaces(self.document(last), document)

    def document(self, entry: CatalogueEntry) -> dict[str, Any]:
        """The OpenAPI document of an entry."""
        repository = Reference.parse(entry.image).repository
        manifest = self._registry.manifest(repository, entry.artifact).json()
        for layer in manifest["layers"]:
            if layer["mediaType"] == _DOCUMENT:
                return json.loads(self._registry.blob(repository, layer["digest"]))
        raise TransportError(
            f"{entry.image} is described without a document.", code="bad_catalogue"
        )

    def find(self, reference: Reference, version: str) -> CatalogueEntry | None:
        """The entry of one version of a component."""
        entries = (
            e for e in self.entries() if (e.repository, e.version) == (reference.name, version)
        )
        return next(entries, None)

    def config_digest(self, entry: CatalogueEntry) -> str:
        """The digest of the configuration of an entry's image, which engines call its id."""
        repository = Reference.parse(entry.image).repository
        return self._registry.manifest(repository, entry.digest).json()["config"]["digest"]

    def publish(
        self, reference: Reference, document: Mapping[str, Any], *, owner: str = ""
    ) -> CatalogueEntry:
        """Describe an image that is in the registry, and add it to the index.

        Args:
            reference: of the image.
            document: OpenAPI document of the component in it.
            owner: who answers for the component.

        Raises:
            InputError: the version is taken by another image (`version_exists`).
        """
        registry, repository = self._registry, reference.repository
        digest = registry.digest(reference)
        known = self.find(reference, document["info"]["version"])
        if known is not None and known.digest != digest:
            raise version_exists(known)
        entry = CatalogueEntry.of_document(
            document, repository=reference.name, digest=digest, owner=owner
        )
        image = registry.manifest(repository, digest)
        subject = {
            "mediaType": image.json().get("mediaType", MANIFEST),
            "digest": digest,
            "size": len(image.body),
        }
        text = json.dumps(document, sort_keys=True).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": _KIND,
            "config": registry.put_blob(repository, entry.to_json().encode(), _ENTRY),
            "layers": [registry.put_blob(repository, text, _DOCUMENT)],
            "subject": subject,
            "annotations": _annotations(entry, hashlib.sha256(text).hexdigest()),
        }
        artifact, answer = registry.put_manifest(repository, None, manifest)
        if "oci-subject" not in answer.headers:
            self._add_referrer(repository, digest, artifact, manifest)
        entry = CatalogueEntry.from_json({**json.loads(entry.to_json()), "artifact": artifact})
        self._add(entry)
        return entry

    def rebuild(self) -> list[CatalogueEntry]:
        """Write the index anew from the descriptions of all images below the prefix.

        Raises:
            CapabilityError: the registry does not list its repositories (`not_in_registry`).
        """
        entries = [
            entry
            for repository in self._registry.repositories()
            if repository.startswith(f"{self._prefix}/" if self._prefix else "")
            for entry in self._described(repository)
        ]
        self._write(entries)
        return entries

    def _described(self, repository: str) -> Iterator[CatalogueEntry]:
        digests = {
            self._registry.digest(Reference(self._registry.host, repository, tag))
            for tag in self._registry.tags(repository)
            if not tag.startswith("sha256-")
        }
        for digest in sorted(digests):
            for described in self._registry.referrers(repository, digest):
                if described.get("artifactType") != _KIND:
                    continue
                manifest = self._registry.manifest(repository, described["digest"]).json()
                content = self._registry.blob(repository, manifest["config"]["digest"])
                facts = {**json.loads(content), "artifact": described["digest"]}
                yield CatalogueEntry.from_json(facts)

    def _add_referrer(
        self, repository: str, digest: str, artifact: str, manifest: Mapping[str, Any]
    ) -> None:
        """What a registry with the referrers API does itself, as the protocol says for all others."""
        others = self._registry.referrers(repository, digest)
        own = {
            "mediaType": MANIFEST,
            "digest": artifact,
            "size": len(json.dumps(manifest, sort_keys=True).encode()),
            "artifactType": _KIND,
            "annotations": manifest["annotations"],
        }
        manifests = [*(each for each in others if each["digest"] != artifact), own]
        content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        self._registry.put_manifest(repository, fallback_tag(digest), content)

    def _add(self, entry: CatalogueEntry) -> None:
        for _ in range(_TRIES):
            entries = self.entries()
            if entry in entries:
                return
            same = (entry.repository, entry.version)
            self._write([*(e for e in entries if (e.repository, e.version) != same), entry])
        raise TransportError(
            f"{entry.image} is published, but others write the catalogue at the same time. "
            "`chainrule search --rebuild` adds it.",
            code="catalogue_busy",
        )

    def _write(self, entries: Iterable[CatalogueEntry]) -> None:
        lines = "".join(f"{entry.to_json()}\n" for entry in entries).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": _INDEX_KIND,
            "config": self._registry.put_blob(self._index, b"{}", EMPTY),
            "layers": [self._registry.put_blob(self._index, lines, _LINES)],
        }
        self._registry.put_manifest(self._index, "latest", manifest)


def version_exists(entry: CatalogueEntry) -> InputError:
    """The error for a version that another image has."""
    return InputError(
        f"{entry.name} {entry.version} is published already, as {entry.image}, and a version never "
        "changes. Give the component a new version and build it again.",
        code="version_exists",
    )


def _annotations(entry: CatalogueEntry, document_hash: str) -> dict[str, str]:
    """What registries and their pages show of an entry; the whole of it is in the configuration."""
    derivatives = [name for name in entry.endpoints if name in DERIVATIVE_ENDPOINTS]
    return {
        "org.opencontainers.image.title": entry.name,
        "org.opencontainers.image.version": entry.version,
        "org.opencontainers.image.description": entry.description,
        "chainrule.digest": entry.digest,
        "chainrule.document-hash": document_hash,
        "chainrule.owner": entry.owner,
        "chainrule.derivatives": ",".join(derivatives),
        "chainrule.endpoints": ",".join(entry.endpoints),
    }
