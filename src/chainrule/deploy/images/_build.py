"""`build_image`: from a plan to an image with tags, unless the same image exists already."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule._errors import CapabilityError, DefinitionError, InputError, TransportError
from chainrule.deploy.images._context import context_hash, write_context
from chainrule.deploy.images._engine import Engine, find_engine
from chainrule.deploy.images._plan import BuildPlan
from chainrule.deploy.images._recipes import quoted

_FAILED = re.compile(r"chainrule-build-failed: (.+)")
_SHOWN = 25
# OCI's own format has no health checks. A fixed time makes equal contents equal images.
_FORMAT = ["--format", "docker", "--timestamp", "0"]
_ADVICE = {
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
        f"{_ADVICE.get(step or '', problem)}. The last lines of the engine:\n{shown}",
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
