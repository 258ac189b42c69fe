"""The Apptainer definition file of a component, for clusters where nobody may run a container engine.

It runs the same scripts as the Containerfile, in one stage. Apptainer runs as the calling user, who is not
root, in the host's network: the server is told its address when it is started.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from chainrule.deploy.images._plan import BuildPlan

_FILES = ("scripts", "credentials", "local_requirements")


def apptainer_definition(plan: BuildPlan) -> str:
    """The text of the definition file; `apptainer build heat.sif component.def` in the build context."""
    sections = [
        f"Bootstrap: docker\nFrom: {plan.settings.base_image}",
        _section("files", _files(plan)),
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


def _files(plan: BuildPlan) -> list[str]:
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
    """A line of a Containerfile as a line of shell; what is not a command cannot be carried over."""
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
