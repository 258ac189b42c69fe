"""What is needed of the OCI distribution protocol: manifests, blobs, tags, referrers, and logins.

A registry stores *blobs* (bytes, named by their SHA-256) and *manifests* (JSON that lists blobs, named by
their digest or by a tag). What is read by digest is checked against it. Registries on loopback are asked
over HTTP, all others over HTTPS, as docker and podman do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from chainrule._errors import CapabilityError, InputError, TransportError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
_ACCEPTED = (
    MANIFEST,
    INDEX,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MAX_MANIFEST, _MAX_BLOB = 4 << 20, 256 << 20
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Reference:
    """The name of something in a registry.

    Attributes:
        host: the registry, with its port.
        repository: the name in it.
        tag: a tag; `latest` where none was written.
        digest: `sha256:…`, where one was written.
    """

    host: str
    repository: str
    tag: str = "latest"
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read `registry.example:5000/team/heat:1.0` or `…@sha256:…`.

        Raises:
            InputError: it is no reference (`bad_reference`).
        """
        found = re.fullmatch(
            r"(?P<name>[a-z0-9][\w.:/-]*?)(:(?P<tag>\w[\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?",
            text,
        )
        if found is None:
            raise InputError(
                f"Expected the name of an image, such as registry.example/team/heat:1.0; found {text!r}.",
                code="bad_reference",
            )
        host, slash, rest = found["name"].partition("/")
        if not slash or not (re.search("[.:]", host) or host == "localhost"):
            # What docker takes for names without a registry.
            host, rest = "docker.io", found["name"] if slash else f"library/{found['name']}"
        return cls(host, rest, found["tag"] or "latest", found["digest"])

    @property
    def name(self) -> str:
        """The repository with its registry."""
        return f"{self.host}/{self.repository}"

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True)
class Answer:
    """What a registry answered."""

    body: bytes
    headers: Mapping[str, str]
    url: str

    def json(self) -> Any:
        """The body as JSON; a registry that answers something else is not one."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise _not_a_registry(urlsplit(self.url).netloc, "JSON") from error


class Registry:
    """One registry.

    Args:
        host: its name, with its port.
        logins: where `podman login` and `docker login` keep what they are given; the usual files when not
            given.
    """

    def __init__(self, host: str, *, logins: tuple[Path, ...] | None = None) -> None:
        self.host = host
        scheme = (
            "http" if re.fullmatch(r"(localhost|127\.[\d.]+|\[::1\])(:\d+)?", host) else "https"
        )
        server = "registry-1.docker.io" if host == "docker.io" else host
        self._base = f"{scheme}://{server}"
        self._login = _read_login(host, _login_files() if logins is None else logins)
        self._authorization: str | None = None

    def digest(self, reference: Reference) -> str:
        """The digest of what a tag names now.

        Raises:
            CapabilityError: there is no such tag (`not_in_registry`).
        """
        if reference.digest:
            return reference.digest
        answer = self._find(
            "HEAD", self._manifest(reference.repository, reference.tag), accept=_ACCEPTED
        )
        if answer is None:
            raise CapabilityError(
                f"The registry has no image {reference}. Push it (chainrule image push {reference}), or "
                "check its name and tag.",
                code="not_in_registry",
            )
        return answer.headers.get("docker-content-digest") or _digest(
            self.manifest(reference.repository, reference.tag).body
        )

    def manifest(self, repository: str, name: str) -> Answer:
        """A manifest by its digest or its tag."""
        answer = self._ask(
            "GET", self._manifest(repository, name), accept=_ACCEPTED, most=_MAX_MANIFEST
        )
        if name.startswith("sha256:"):
            _check(answer.body, name)
        return answer

    def put_manifest(
        self, repository: str, name: str | None, content: Mapping[str, Any]
    ) -> tuple[str, Answer]:
        """Write a manifest under a tag, or under its digest alone; return the digest."""
        body = json.dumps(content, sort_keys=True).encode()
        digest = _digest(body)
        headers = {"Content-Type": content["mediaType"]}
        path = self._manifest(repository, name or digest)
        return digest, self._ask("PUT", path, data=body, headers=headers)

    def blob(self, repository: str, digest: str) -> bytes:
        """A blob, checked against its digest."""
        body = self._ask("GET", f"/v2/{repository}/blobs/{digest}", most=_MAX_BLOB).body
        _check(body, digest)
        return body

    def put_blob(self, repository: str, content: bytes, media_type: str) -> dict[str, Any]:
        """Upload bytes, unless the registry has them; return what a manifest says of them."""
        digest = _digest(content)
        described = {"mediaType": media_type, "digest": digest, "size": len(content)}
        if self._find("HEAD", f"/v2/{repository}/blobs/{digest}") is None:
            started = self._ask("POST", f"/v2/{repository}/blobs/uploads/", data=b"")
            place = urljoin(started.url, started.headers.get("location", ""))
            place += f"{'&' if '?' in place else '?'}{urlencode({'digest': digest})}"
            headers = {"Content-Type": "application/octet-stream"}
            self._ask("PUT", place, data=content, headers=headers)
        return described

    def tags(self, repository: str) -> Iterator[str]:
        """All tags of a repository."""
        for page in self._pages(f"/v2/{repository}/tags/list?n=1000"):
            yield from page.get("tags") or ()

    def repositories(self) -> Iterator[str]:
        """The names of all repositories; hosted registries mostly do not tell."""
        for page in self._pages("/v2/_catalog?n=1000"):
            yield from page.get("repositories") or ()

    def referrers(self, repository: str, digest: str) -> list[dict[str, Any]]:
        """What manifests say of the manifests whose subject this one is.

        Registries without the referrers API have an index under the tag `sha256-…` in its place.
        """
        path = f"/v2/{repository}/referrers/{digest}"
        fallback = self._manifest(repository, fallback_tag(digest))
        found = self._find("GET", path) or self._find("GET", fallback, accept=(INDEX,))
        return [] if found is None else found.json().get("manifests") or []

    def find_manifest(self, repository: str, name: str) -> Answer | None:
        """A manifest, or `None` where there is none of that name."""
        return self._find("GET", self._manifest(repository, name), accept=_ACCEPTED)

    def _find(self, method: str, path: str, **options: Any) -> Answer | None:
        try:
            return self._ask(method, path, **options)
        except CapabilityError as error:
            if error.code != "not_in_registry":
                raise
            return None

    def _manifest(self, repository: str, name: str) -> str:
        return f"/v2/{repository}/manifests/{name}"

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        while path:
            answer = self._ask("GET", path)
            yield answer.json()
            found = re.search(r'<([^>]+)>;\s*rel="?next', answer.headers.get("link", ""))
            path = urljoin(answer.url, found[1]) if found else ""

    def _ask(
        self,
        method: str,
        place: str,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[str, ...] = (),
        most: int = _MAX_MANIFEST,
    ) -> Answer:
        """One request; a second one with a login where the registry asks for it."""
        url = urljoin(self._base, place)
        for attempt in (1, 2):
            request = urllib.request.Request(url, data, dict(headers or {}), method=method)
            if accept:
                request.add_header("Accept", ", ".join(accept))
            if self._authorization and urlsplit(url).netloc == urlsplit(self._base).netloc:
                # Not sent on to the storage that a registry redirects to.
                request.add_unredirected_header("Authorization", self._authorization)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                    body = answer.read(most + 1)
                    if len(body) > most:
                        raise TransportError(
                            f"{self.host} sends more than {most} bytes for {urlsplit(url).path}.",
                            code="registry_failed",
                        )
                    return Answer(body, _lower(answer.headers), answer.url)
            except urllib.error.HTTPError as error:
                with error:
                    challenge = error.headers.get("WWW-Authenticate", "")
                    if error.code == 401 and attempt == 1 and challenge:
                        self._authorization = self._authorize(challenge)
                        continue
                    raise self._failure(method, url, error) from None
            except HTTPException as error:
                raise _not_a_registry(self.host, "HTTP") from error
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                raise TransportError(
                    f"The registry {self.host} cannot be reached: {reason}. Check its name and port, and "
                    "that this machine may connect to it.",
                    code="unreachable",
                ) from error
        raise AssertionError("unreachable: the second attempt returns or raises")

    def _authorize(self, challenge: str) -> str:
        """The header that answers a challenge: the login itself, or a token that it buys."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            if self._login is None:
                raise self._denied("it asks for a login")
            return f"Basic {self._login}"
        facts = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = facts.pop("realm", "")
        if urlsplit(realm).scheme not in ("https", urlsplit(self._base).scheme):
            raise self._denied(f"its login server {realm!r} is not safe")
        request = urllib.request.Request(f"{realm}?{urlencode(facts, quote_via=quote)}")
        if self._login is not None:
            request.add_unredirected_header("Authorization", f"Basic {self._login}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                found = json.loads(answer.read(_MAX_MANIFEST))
            return f"Bearer {found.get('token') or found['access_token']}"
        except urllib.error.HTTPError as error:
            with error:
                raise self._denied(f"its login server answers with {error.code}") from None
        except (OSError, HTTPException, ValueError, KeyError) as error:
            raise self._denied("its login server gives no token") from error

    def _denied(self, why: str) -> CapabilityError:
        return CapabilityError(
            f"The registry {self.host} refuses: {why}. Log in with `podman login {self.host}` or "
            f"`docker login {self.host}`.",
            code="registry_denied",
        )

    def _failure(self, method: str, url: str, error: urllib.error.HTTPError) -> Exception:
        try:
            said = json.loads(error.read(_MAX_MANIFEST))["errors"][0]["message"]
        except (OSError, ValueError, LookupError, TypeError):
            said = error.reason
        path = urlsplit(url).path
        if error.code in (401, 403):
            return self._denied(f"{method} {path}: {said}")
        if error.code in (404, 405):
            return CapabilityError(f"{self.host} has no {path}: {said}.", code="not_in_registry")
        return TransportError(
            f"{self.host} answers {method} {path} with {error.code}: {said}.",
            code="registry_failed",
        )


def _not_a_registry(host: str, expected: str) -> TransportError:
    return TransportError(
        f"{host} does not answer as a registry does: expected {expected}.", code="not_a_registry"
    )


def fallback_tag(digest: str) -> str:
    """The tag under which a registry without the referrers API keeps them."""
    return digest.replace(":", "-")


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _check(content: bytes, digest: str) -> None:
    if _digest(content) != digest:
        raise TransportError(
            f"What the registry sends for {digest} has another digest: it is damaged.",
            code="registry_failed",
        )


def _login_files() -> tuple[Path, ...]:
    """Where podman and docker keep logins, in the order in which podman looks."""
    named = os.environ.get("REGISTRY_AUTH_FILE")
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    docker = os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker"))
    usual = (Path(runtime, "containers/auth.json"), Path(docker, "config.json"))
    return (Path(named), *usual) if named else usual


def _read_login(host: str, files: tuple[Path, ...]) -> str | None:
    """The login as a header takes it; helpers that keep logins elsewhere are not asked."""
    for file in files:
        try:
            entries = json.loads(file.read_text(encoding="utf-8")).get("auths", {})
            entry = entries.get(host) or entries.get(f"https://{host}/v1/") or {}
            if base64.b64decode(entry.get("auth", ""), validate=True):
                return entry["auth"]
        except (OSError, ValueError, AttributeError, TypeError):
            continue
    return None
