"""The Containerfile of a component: what `podman build` and `docker build` read.

Three stages. `system` has the packages of the operating system and the user; `packages` has what is needed
to install Python packages; the last one is `system` with the finished environment and the component. What
changes rarely comes first, so that an edit of the component repeats its last steps only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from chainrule.deploy.images._plan import BuildPlan

_COMPILE = "/opt/venv/bin/python -m compileall -q --invalidation-mode checked-hash /component"
_CACHE = "--mount=type=cache,target=/build-cache"


def containerfile(plan: BuildPlan) -> str:
    """The text of the Containerfile of a plan."""
    stages = [_system(plan), _packages(plan), _component(plan)]
    return "\n\n".join("\n".join(lines) for lines in stages) + "\n"


def quoted(value: str) -> str:
    """A value of ENV or LABEL. These know no escape for the end of a line."""
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
    """One line for all of them: every line costs a layer."""
    pairs = " ".join(f"{name}={quoted(value)}" for name, value in values.items())
    return [f"{keyword} {pairs}"] if pairs else []
