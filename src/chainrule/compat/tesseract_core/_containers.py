"""Building images and running containers under the ancestor's names, on `chainrule.deploy.images`.

`TESSERACT_DOCKER_EXECUTABLE`, `TESSERACT_DOCKER_BUILD_ARGS` and `TESSERACT_DOCKER_RUN_ARGS` are read as the
ancestor reads them.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule._errors import CapabilityError, InputError
from chainrule.compat.tesseract_core.runtime.config import check_gpu_transport
from chainrule.deploy.images import (
    ComponentImage,
    Container,
    Engine,
    RunOptions,
    ask_image,
    build_image,
    find_engine,
    list_containers,
    plan_build,
    start_container,
    stop_container,
    write_context,
)
from chainrule.deploy.internal import is_free

StreamLogs = bool | Callable[[str], Any]


@dataclass(frozen=True)
class Image:
    """An image.

    Attributes:
        id: by which the engine knows it.
        tags: its names.
        attrs: everything the engine knows of it.
    """

    id: str
    tags: list[str]
    attrs: Mapping[str, Any]


def container_engine() -> Engine:
    """The engine that the ancestor's variables name, with their arguments."""
    engine = find_engine(os.environ.get("TESSERACT_DOCKER_EXECUTABLE"))

    def words(variable: str) -> list[str]:
        return shlex.split(os.environ.get(variable, ""))

    return dataclasses.replace(
        engine,
        build_args=(*engine.build_args, *words("TESSERACT_DOCKER_BUILD_ARGS")),
        run_args=(*engine.run_args, *words("TESSERACT_DOCKER_RUN_ARGS")),
    )


def build_tesseract(
    src_dir: str | Path,
    image_tag: str | None,
    build_dir: Path | None = None,
    inject_ssh: bool = False,
    secrets: list[str] | None = None,
    config_override: dict[tuple[str, ...], Any] | None = None,
    generate_only: bool = False,
    stream_logs: StreamLogs = False,
) -> Image | Path:
    """Build an image of the component in a folder.

    Args:
        src_dir: with `tesseract_api.py` and `tesseract_config.yaml`.
        image_tag: tag beside the name in the configuration; its version and `latest` when not given.
        build_dir: folder for the build files.
        inject_ssh: let the build use this user's SSH agent.
        secrets: as `--secret` of the engine takes them.
        config_override: values for `tesseract_config.yaml`, by their keys from the top.
        generate_only: write the build files and build nothing; needs no engine.
        stream_logs: show the progress on standard error, or hand every line to a function.

    Returns:
        The image, or with `generate_only` the folder.
    """
    plan = plan_build(src_dir, changes=config_override)
    if generate_only:
        return write_context(plan, build_dir or Path(tempfile.mkdtemp(prefix="tesseract-build-")))
    engine = container_engine()
    if inject_ssh:
        engine = dataclasses.replace(engine, build_args=(*engine.build_args, "--ssh", "default"))
    built = build_image(
        plan,
        tags=[] if image_tag is None else [f":{image_tag}"],
        engine=engine,
        context=build_dir,
        secrets=secrets or (),
        on_line=_sink(stream_logs),
    )
    attrs = engine.inspect("image", built.tags[0])
    return Image(id=attrs["Id"], tags=list(built.tags[1:]), attrs=attrs)


def _sink(stream_logs: StreamLogs) -> Callable[[str], Any]:
    if callable(stream_logs):
        return stream_logs
    return (lambda line: sys.stderr.write(f"{line}\n")) if stream_logs else (lambda line: None)


def run_tesseract(
    image: str,
    command: str,
    args: list[str],
    volumes: list[str] | None = None,
    gpus: Sequence[int | str] | None = None,
    ports: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    network: str | None = None,
    user: str | None = None,
    memory: str | None = None,
    input_path: str | Path | None = None,
    output_path: str | Path | None = None,
    output_format: str | None = None,
    output_file: str | None = None,
    docker_args: list[str] | None = None,
    debug: bool = False,
    stream_logs: StreamLogs = False,
) -> tuple[str, str]:
    """Have an image answer one call.

    Args:
        image: its name.
        command: such as `apply`.
        args: of the command; `@file` is given to the container.
        volumes: `here:there[:ro|rw]`.
        gpus: devices.
        ports: accepted; one call has none.
        environment: variables.
        network: of the engine.
        user: `uid[:gid]`.
        memory: the most it may use.
        input_path: folder that the payload may name files in.
        output_path: folder for files of the run.
        output_format: how arrays are written.
        output_file: file in the output path for the result.
        docker_args: further arguments of the engine.
        debug: accepted; no debugger is started.
        stream_logs: show what the component prints, or hand it to a function, at the end of the call.

    Returns:
        Standard output and standard error.
    """
    arguments, mounted = _with_payload_files(args)
    settings = {"output_format": output_format, "output_file": output_file}
    options = RunOptions(
        gpus=gpus,
        memory=memory,
        volumes=[*(volumes or ()), *mounted],
        env=container_environment(environment, settings),
        network=network,
        user=user,
        input_path=input_path,
        output_path=output_path,
        extra=docker_args or (),
    )
    engine = container_engine()
    # Images of the ancestor read these settings from their environment, ours from their arguments.
    is_native = ComponentImage.find(engine, image).is_native
    flags = [f"--{n.replace('_', '-')}={v}" for n, v in settings.items() if v is not None]
    call = [command, *arguments, *(flags if is_native else ())]
    stdout, stderr = ask_image(image, call, options, engine=engine)
    on_line = _sink(stream_logs)
    for line in stderr.splitlines():
        on_line(line)
    return stdout, stderr


def _with_payload_files(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with `@file` naming the file's place in the container, and the volumes for that."""
    changed, volumes = [], []
    for number, argument in enumerate(args):
        file = Path(argument.removeprefix("@"))
        if argument.startswith("@") and "://" not in argument and file.is_file():
            place = f"/tmp/payload_{number}{file.suffix}"
            volumes.append(f"{file.resolve()}:{place}:ro")
            argument = f"@{place}"
        changed.append(argument)
    return changed, volumes


def container_environment(
    environment: Mapping[str, str] | None, settings: Mapping[str, Any] | None
) -> dict[str, str]:
    """Variables of a container: those that were given, and the ancestor's for its settings."""
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    return {f"TESSERACT_{name.upper()}": str(value) for name, value in given.items()} | dict(
        environment or {}
    )


def serve(
    image_name: str,
    *,
    host_ip: str = "127.0.0.1",
    port: str | None = None,
    network: str | None = None,
    network_alias: str | None = None,
    volumes: list[str] | None = None,
    environment: dict[str, str] | None = None,
    gpus: Sequence[str] | None = None,
    debug: bool = False,
    num_workers: int = 1,
    user: str | None = None,
    memory: str | None = None,
    input_path: str | Path | None = None,
    output_path: str | Path | None = None,
    output_format: str | None = None,
    gpu_transport: str | None = None,
    docker_args: list[str] | None = None,
    runtime_config: Mapping[str, Any] | None = None,
    skip_health_check: bool = False,
    startup_timeout: float = 30.0,
) -> tuple[str, Container]:
    """Start a container that stays until `teardown`.

    Args:
        image_name: its name.
        host_ip: only loopback; put a proxy before it for others.
        port: a number, or a range such as `8000-8010`; a free one when not given.
        network: of the engine.
        network_alias: a name in that network.
        volumes: `here:there[:ro|rw]`.
        environment: variables.
        gpus: devices.
        debug: accepted; no debugger is started.
        num_workers: processes that answer calls.
        user: `uid[:gid]`.
        memory: the most it may use.
        input_path: folder that callers may name files in.
        output_path: folder for files of runs.
        output_format: how arrays are written where a caller does not say, in images of the ancestor.
        gpu_transport: only `none`.
        docker_args: further arguments of the engine.
        runtime_config: settings of the ancestor's runtime, for its images.
        skip_health_check: accepted; a container is always waited for.
        startup_timeout: seconds that it may take to answer.

    Returns:
        The container's name, and the container.
    """
    check_gpu_transport(gpu_transport)
    settings = {"output_format": output_format, **(runtime_config or {})}
    container = start_container(
        image_name,
        RunOptions(
            gpus=gpus,
            memory=memory,
            volumes=volumes,
            env=container_environment(environment, settings),
            network=network,
            user=user,
            input_path=input_path,
            output_path=output_path,
            workers=num_workers,
            extra=[*aliased(network_alias), *(docker_args or ())],
        ),
        engine=container_engine(),
        owned=False,
        port=chosen_port(host_ip, port),
        startup_timeout=startup_timeout,
    )
    return container.name, container


def aliased(network_alias: str | None) -> list[str]:
    """The engine's arguments for a name in a network."""
    return [] if network_alias is None else ["--network-alias", network_alias]


def chosen_port(host_ip: str, port: str | None) -> int | None:
    """The port to publish on loopback; `None` for any.

    Raises:
        CapabilityError: another address than loopback (`loopback_only`).
        InputError: not a port, or none of the range is free (`bad_option`).
    """
    if host_ip not in ("127.0.0.1", "localhost"):
        raise CapabilityError(
            f"Containers are published on 127.0.0.1 only, not on {host_ip}: put a proxy with TLS "
            "before it for callers on other machines.",
            code="loopback_only",
        )
    if port is None:
        return None
    first, _, last = str(port).partition("-")
    if not first.isdigit() or (last and not last.isdigit()):
        raise InputError(
            f"Expected a port or a range such as 8000-8010; found {port!r}.", code="bad_option"
        )
    ports = range(int(first), int(last or first) + 1)
    free = next((number for number in ports if is_free(number)), None)
    if free is None:
        raise InputError(f"No port of {port} is free.", code="bad_option")
    return free


def teardown(container_ids: Collection[str] | None = None, tear_all: bool = False) -> None:
    """Stop and remove containers.

    Args:
        container_ids: their names.
        tear_all: every container of a component.

    Raises:
        ValueError: neither is given, or there is no such container; nothing is stopped then.
    """
    engine = container_engine()
    known = [facts.name for facts in list_containers(engine)]
    if isinstance(container_ids, str):
        container_ids = [container_ids]
    wanted = known if tear_all else list(container_ids or ())
    if not wanted and not tear_all:
        raise ValueError("Name the containers to tear down, or pass tear_all=True.")
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"There is no container {unknown[0]!r} of a Tesseract.")
    for name in wanted:
        stop_container(engine, name)
