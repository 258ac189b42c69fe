"""`build_image`: from a plan to an image with tags, unless the same image exists already.

An image is built from a folder with everything that it is made from (`write_context`), and known by its hash:

Containerfile, component.def    the recipe for podman and docker, and for Apptainer
scripts/                        what both recipes run
chainrule-….whl                 the Chainrule that is running
requirements.txt, …             packages of the component, local ones included
component/                      the component's folder, without hidden files and caches
package_data/                   files for other places in the image
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import chainrule
from chainrule._content_store import hash_parts
from chainrule._errors import (
    CapabilityError,
    DefinitionError,
    InputError,
    StorageError,
    TransportError,
)
from chainrule.deploy.images._engine import Engine, find_engine
from chainrule.deploy.images._plan import BuildPlan
from chainrule.deploy.images._recipes import apptainer_definition, containerfile, quoted

_FAILED = re.compile(r"chainrule-build-failed: (.+)")
_SHOWN = 25
# OCI's own format has no health checks. A fixed time makes equal contents equal images.
_FORMAT = ["--format", "docker", "--timestamp", "0"]
# Step of a build, as its scripts name it → what an error says when it fails.
_PROBLEMS = {
    "conda": "conda cannot be fetched",
    "conda environment": "The environment of conda cannot be made",
    "requirements": "The requirements cannot be installed",
    "component": "The component cannot be loaded in its image",
    "regression tests": "A regression test fails in the image",
    "gradient check": "The gradient check fails in the image",
}


@dataclass(frozen=True)
class BuiltImage:
    """An image.

    Attributes:
        tags: its names; the first one names the content and never moves.
        was_built: whether it was built; otherwise it existed already.
        labels: its labels.
    """

    tags: tuple[str, ...]
    was_built: bool
    labels: Mapping[str, str]


def build_image(
    plan: BuildPlan,
    *,
    tags: Sequence[str] = (),
    engine: Engine | None = None,
    context: Path | None = None,
    secrets: Sequence[str] = (),
    push: bool = False,
    on_line: Callable[[str], Any] = lambda line: None,
) -> BuiltImage:
    """Build the image of a component, unless one with the same content exists.

    Args:
        plan: made by `plan_build`.
        tags: `name`, `name:tag` or `registry/name:tag`, or a bare tag (which starts with a colon);
            the component's version and `latest` when none is given.
        engine: made by `find_engine`.
        context: folder for the build files, which stay there; a temporary one by default.
        secrets: as the engine's `--secret` takes them, such as `id=token,src=token.txt`.
        push: push the image to the registry that its tags name.
        on_line: called with every line that the engine writes.

    Raises:
        CapabilityError: the base image is not here and cannot be pulled (`base_missing`).
        DefinitionError: the build failed (`build_failed`); `details["step"]` says where.
        InputError: a tag or a secret is malformed, or a secret is missing.
    """
    engine = engine or find_engine()
    _check_secrets(plan, secrets)
    with tempfile.TemporaryDirectory(prefix="chainrule-build-") as scratch:
        folder = write_context(plan, context or Path(scratch) / "context")
        digest = context_hash(folder)[:12]
        names = _names(plan, tags, digest)
        was_built = not engine.succeeds("image", "inspect", names[0])
        if was_built:
            _fetch_base(engine, plan, on_line)
            _build(engine, plan, folder, names[0], secrets, on_line)
            _add_facts(engine, names[0], digest, Path(scratch))
    for name in names[1:]:
        engine.ask("tag", names[0], name)
    if push:
        for name in names:
            _stream(engine, ["push", name], on_line, f"{name} cannot be pushed")
    return BuiltImage(names, was_built, engine.inspect("image", names[0])["Config"]["Labels"])


def _names(plan: BuildPlan, tags: Sequence[str], digest: str) -> tuple[str, ...]:
    """Full names, the one with the hash first."""
    given = [f"{plan.settings.name}{tag}" if tag.startswith(":") else tag for tag in tags]
    for tag in given:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._/:-]*?(:[\w][\w.-]{0,127})?", tag):
            raise InputError(
                f"{tag!r} cannot name an image; expected name:tag or registry/name:tag.",
                code="bad_tag",
            )
    repository = re.sub(r":[^:/]*$", "", given[0]) if given else plan.settings.name
    if not given:
        version = plan.settings.version
        given = [f"{repository}:latest"]
        given += [] if version == "unknown" else [f"{repository}:{version}"]
    return (f"{repository}:{digest}", *given)


def _check_secrets(plan: BuildPlan, secrets: Sequence[str]) -> None:
    parsed = [dict(part.partition("=")[::2] for part in secret.split(",")) for secret in secrets]
    if not all("id" in secret and secret.keys() & {"src", "env"} for secret in parsed):
        raise InputError(
            "A secret is given as id=NAME,src=FILE or id=NAME,env=VARIABLE.", code="bad_option"
        )
    for secret in parsed:
        _check_source(secret)
    missing = set(plan.settings.all_secrets) - {secret["id"] for secret in parsed}
    if missing:
        name = min(missing)
        raise InputError(
            f"The build needs the secret {name!r}. Pass --secret id={name},src=FILE or "
            f"--secret id={name},env=VARIABLE.",
            code="secret_missing",
        )


def _check_source(secret: Mapping[str, str]) -> None:
    if "src" in secret and not Path(secret["src"]).is_file():
        where = f"the file {secret['src']} does not exist"
    elif "env" in secret and secret["env"] not in os.environ:
        where = f"the variable {secret['env']} is not set"
    else:
        return
    raise InputError(f"The secret {secret['id']!r} is missing: {where}.", code="secret_missing")


def _fetch_base(engine: Engine, plan: BuildPlan, on_line: Callable[[str], Any]) -> None:
    """Pull the base image where it is missing, with an error of its own: it is not the component's fault."""
    base, platform = plan.settings.base_image, plan.settings.platform
    if engine.succeeds("image", "inspect", base):
        return
    arguments = ["pull", *(["--platform", platform] if platform else []), base]
    code, tail = engine.stream(arguments, on_line)
    if code:
        raise CapabilityError(
            f"The base image {base!r} is not here, and {engine.kind} cannot pull it: "
            f"{' '.join(tail[-2:])[-300:]}\nName another one: `--base`, or `build.base` in "
            "component.yaml.",
            code="base_missing",
        )


def _build(
    engine: Engine,
    plan: BuildPlan,
    folder: Path,
    name: str,
    secrets: Sequence[str],
    on_line: Callable[[str], Any],
) -> None:
    command = ["build", "--tag", f"{name}-unfinished", "--file", str(folder / "Containerfile")]
    command += _FORMAT if engine.kind == "podman" else []
    command += ["--platform", plan.settings.platform] if plan.settings.platform else []
    for secret in secrets:
        command += ["--secret", secret]
    _stream(engine, [*command, *engine.build_args, str(folder)], on_line, "The build failed")


def _stream(
    engine: Engine, arguments: Sequence[str], on_line: Callable[[str], Any], problem: str
) -> None:
    code, tail = engine.stream(arguments, on_line)
    if code == 0:
        return
    step = next((m[1] for line in reversed(tail) if (m := _FAILED.search(line))), None)
    shown = "\n".join(tail[-_SHOWN:])
    raise DefinitionError(
        f"{_PROBLEMS.get(step or '', problem)}. The last lines of the engine:\n{shown}",
        code="build_failed",
        details={"step": step, "exit_code": code},
    )


def _add_facts(engine: Engine, name: str, digest: str, scratch: Path) -> None:
    """Label the image with facts of the component, which was loaded inside it, and give it its name."""
    unfinished = f"{name}-unfinished"
    facts = json.loads(
        engine.ask(
            "run", "--rm", "--network", "none", "--no-healthcheck", "--entrypoint", "cat",
            unfinished, "/opt/chainrule/facts.json",
        )
    )  # fmt: skip
    labels = {"chainrule.context-hash": digest}
    if "schema_hash" in facts:
        labels["chainrule.schema-hash"] = facts["schema_hash"]
        labels["chainrule.content-hash"] = facts["content_hash"]
        labels["chainrule.endpoints"] = ",".join(facts["endpoints"])
        labels["org.opencontainers.image.version"] = facts["version"]
    folder = scratch / "labels"
    folder.mkdir()
    lines = [f"FROM {unfinished}", *(f"LABEL {key}={quoted(v)}" for key, v in labels.items())]
    (folder / "Containerfile").write_text("\n".join(lines) + "\n")
    form = _FORMAT if engine.kind == "podman" else []
    command = ["build", "--tag", name, "--file", str(folder / "Containerfile"), *form]
    try:
        engine.ask(*command, *engine.build_args, str(folder))
    except TransportError as error:
        raise DefinitionError(
            f"The image cannot be labelled: {error.message}", code="build_failed"
        ) from error
    engine.ask("rmi", unfinished)


_SCRIPTS = Path(__file__).parent / "_scripts"
# Hidden files belong to tools and users (.git, .venv, .env with passwords), not to an image.
_IGNORED_NAMES = shutil.ignore_patterns(".*", "__pycache__", "*.pyc")
_RECIPES = ("Containerfile", "component.def")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can express
_METADATA = ("METADATA", "entry_points.txt")
_TAGS = "Wheel-Version: 1.0\nGenerator: chainrule\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What of a folder stays out of an image: hidden files, caches, and build contexts.

    `chainrule image build . --generate-only` writes a context into the component's own folder; that
    context, or one of an earlier build, must not become a part of the component.
    """
    contexts = {name for name in names if _is_context(Path(folder, name))}
    return set(_IGNORED_NAMES(folder, names)) | contexts


def _is_context(folder: Path) -> bool:
    return all((folder / recipe).is_file() for recipe in _RECIPES)


def write_context(plan: BuildPlan, folder: str | Path) -> Path:
    """Write the build context of a plan into an empty or new folder.

    Raises:
        StorageError: the folder is not empty (`folder_not_empty`), or cannot be written
            (`storage_failed`); a folder that could not be written whole is removed.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StorageError(
                f"{folder} is not empty; name another folder for the build files.",
                code="folder_not_empty",
            )
        try:
            _write(plan, folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"Cannot write the build files: {error}.") from error
    return folder


def _write(plan: BuildPlan, folder: Path) -> None:
    # Written first, because these files mark the folder as a context.
    (folder / "Containerfile").write_text(containerfile(plan), encoding="utf-8")
    (folder / "component.def").write_text(apptainer_definition(plan), encoding="utf-8")
    shutil.copytree(_SCRIPTS, folder / "scripts", ignore=_left_out)
    shutil.copytree(plan.folder, folder / "component", ignore=_left_out)
    for number, (source, _) in enumerate(plan.package_data):
        target = folder / "package_data" / str(number)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_left_out)
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(source, target)
    plan.requirements.write(folder)
    write_wheel(folder)
    credentials = plan.settings.credentials
    lines = [f"{c.host} {c.username} {c.secret_id}\n" for c in credentials]
    (folder / "credentials").write_text("".join(lines))
    _normalise(folder)


def _normalise(folder: Path) -> None:
    """Make everything readable for the image's user, with the same permissions on every machine."""
    for path in folder.rglob("*"):
        is_open = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if is_open else 0o644)


def context_hash(folder: Path) -> str:
    """A hash over names, permissions and contents; equal contexts give the same image name."""
    return hash_parts(_parts(folder))


def _parts(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            mode = path.stat().st_mode & 0o777
            yield f"{path.relative_to(folder).as_posix()} {mode:o}", path.read_bytes()


def write_wheel(folder: Path) -> Path:
    """Write `chainrule-<version>-py3-none-any.whl` into a folder: the Chainrule that is running.

    It is made from the installed files. So it works for an editable checkout as for an installed package,
    needs neither a build tool nor a network, and its bytes depend only on the files.
    """
    installed = distribution("chainrule")
    wheel = folder / f"chainrule-{installed.version}-py3-none-any.whl"
    info = f"chainrule-{installed.version}.dist-info"
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _contents(installed, info):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{name},sha256={digest.decode()},{len(content)}")
        lines = "\n".join([*record, f"{info}/RECORD,,", ""])
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", _EPOCH), lines)
    return wheel


def _contents(installed: Distribution, info: str) -> Iterator[tuple[str, bytes]]:
    package = Path(chainrule.__file__).parent
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"chainrule/{file.relative_to(package).as_posix()}", file.read_bytes()
    yield f"{info}/WHEEL", _TAGS.encode()
    for name in _METADATA:
        text = installed.read_text(name)
        if text is not None:
            yield f"{info}/{name}", text.encode()
