"""The two recipes of an image: a Containerfile for podman and docker, a definition file for Apptainer.

The Containerfile has three stages. `system` has the packages of the operating system and the user;
`packages` has what is needed to install Python packages; the last one is `system` with the finished
environment and the component. What changes rarely comes first, so that an edit of the component repeats
only the last steps.

Apptainer is for clusters where users may not run a container engine. Its definition runs the same scripts
in one stage. Apptainer runs as the calling user, who is not root, in the host's network, so the server gets
its address when it is started.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from chainrule.deploy.images._plan import BuildPlan

_COMPILE = "/opt/venv/bin/python -m compileall -q --invalidation-mode checked-hash /component"
_CACHE = "--mount=type=cache,target=/build-cache"
_FILES = ("scripts", "credentials", "local_requirements")


def containerfile(plan: BuildPlan) -> str:
    """The text of the Containerfile of a plan."""
    stages = [_system(plan), _packages(plan), _component(plan)]
    return "\n\n".join("\n".join(lines) for lines in stages) + "\n"


def quoted(value: str) -> str:
    """A value of ENV or LABEL, in one line: these have no escape for a line break."""
    return json.dumps(" ".join(value.splitlines()), ensure_ascii=False).replace("$", "\\$")


def _system(plan: BuildPlan) -> list[str]:
    return [
        f"FROM {plan.settings.base_image} AS system",
        "COPY scripts/system.sh /tmp/system.sh",
        f"RUN sh /tmp/system.sh {shlex.join(plan.settings.apt)}".rstrip(),
    ]


def _packages(plan: BuildPlan) -> list[str]:
    secrets = [f"--mount=type=secret,id={name}" for name in plan.settings.all_secrets]
    mounts = " ".join([_CACHE, *secrets])
    tools, install = plan.scripts
    return [
        "FROM system AS packages",
        *_assignments("ENV", plan.settings.build_env),
        f"COPY scripts/{tools} /build/",
        f"RUN {_CACHE} sh /build/{tools}",
        f"COPY scripts/login.sh scripts/{install} credentials /build/",
        f"COPY {plan.requirements.name} {plan.wheel} /build/",
        "COPY local_requirements /build/local_requirements",
        f"RUN {mounts} {shlex.join(plan.install_command('/build'))}",
    ]


def _component(plan: BuildPlan) -> list[str]:
    settings = plan.settings
    return [
        "FROM system",
        "COPY --from=packages /opt/python /opt/python",
        "COPY --from=packages /opt/venv /opt/venv",
        "COPY scripts/healthcheck.py /opt/chainrule/healthcheck.py",
        f"HEALTHCHECK --start-period=60s CMD {json.dumps(plan.health_command())}",
        "EXPOSE 8000",
        f"ENTRYPOINT {json.dumps(['/opt/venv/bin/chainrule'])}",
        "WORKDIR /component",
        "COPY component /component",
        *(f"COPY package_data/{i} {dst}" for i, (_, dst) in enumerate(plan.package_data)),
        *_assignments("ENV", plan.environment),
        f"RUN {_COMPILE} || true",
        *(["RUN ln -s /component /tesseract"] if settings.is_peer else []),
        *settings.steps,
        *_assignments("LABEL", plan.labels),
        f"CMD {json.dumps(plan.serve_command())}",
        "USER 10001:10001",
        f"RUN {shlex.join(plan.finish_command())}",
    ]


def _assignments(keyword: str, values: Mapping[str, str]) -> list[str]:
    """All of them in one line, because every line makes a layer."""
    pairs = " ".join(f"{name}={quoted(value)}" for name, value in values.items())
    return [f"{keyword} {pairs}"] if pairs else []


def apptainer_definition(plan: BuildPlan) -> str:
    """The text of the definition file; `apptainer build heat.sif component.def` in the build context."""
    sections = [
        f"Bootstrap: docker\nFrom: {plan.settings.base_image}",
        _section("files", _apptainer_files(plan)),
        _section("post", _post(plan)),
        _section("environment", _exports(plan.environment)),
        _section("labels", [f"{name} {_line(text)}" for name, text in plan.labels.items() if text]),
        _section("runscript", ['exec /opt/venv/bin/chainrule "$@"']),
        _section("startscript", [f'exec /opt/venv/bin/chainrule serve {plan.place} "$@"']),
        _section("test", [f"/opt/venv/bin/chainrule check {plan.place}"]),
        _section("help", [_line(plan.settings.description or plan.settings.name)]),
    ]
    return "\n\n".join(sections) + "\n"


def _section(name: str, lines: list[str]) -> str:
    return "\n".join([f"%{name}", *(f"    {line}" for line in lines)])


def _apptainer_files(plan: BuildPlan) -> list[str]:
    build = [f"{name} /build/{name}" for name in (*_FILES, plan.requirements.name, plan.wheel)]
    data = [f"package_data/{i} {_absolute(dst)}" for i, (_, dst) in enumerate(plan.package_data)]
    return [*build, "component /component", *data]


def _post(plan: BuildPlan) -> list[str]:
    settings = plan.settings
    tools, install = plan.scripts
    return [
        "set -eu",
        *_exports(settings.build_env),
        f"sh /build/scripts/system.sh {shlex.join(settings.apt)}".rstrip(),
        f"sh /build/scripts/{tools}",
        f"mv /build/scripts/login.sh /build/scripts/{install} /build/",
        shlex.join(plan.install_command("/build")),
        "cp /build/scripts/healthcheck.py /opt/chainrule/healthcheck.py",
        "cd /component",
        *(["ln -s /component /tesseract"] if settings.is_peer else []),
        *(_shell_of(step) for step in settings.steps),
        *_exports(plan.environment),
        shlex.join(plan.finish_command()),
        "rm -rf /build /build-cache /opt/uv /opt/miniforge",
    ]


def _shell_of(step: str) -> str:
    """A line of a Containerfile as a line of shell; only RUN has an equivalent."""
    keyword, _, rest = step.strip().partition(" ")
    if keyword.upper() == "RUN":
        return rest
    return f"# not carried over from the Containerfile: {_line(step)}"


def _exports(values: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items()]


def _absolute(place: str) -> str:
    return place if place.startswith("/") else f"/component/{place}"


def _line(text: str) -> str:
    return " ".join(text.splitlines())
