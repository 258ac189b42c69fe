"""How a container is started: one immutable object, and the engine's arguments for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chainrule._errors import InputError
from chainrule.deploy.images._engine import Engine

Gpus = str | Sequence[str | int] | None
Volumes = Mapping[str | Path, str] | Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a container is given.

    Attributes:
        gpus: `"all"`, or numbers or names of NVIDIA devices.
        memory: the most it may use, such as `"2g"`.
        volumes: `{folder here: folder there}`, or `"here:there[:ro|rw]"`s; read-only unless `:rw` is added.
        env: variables.
        network: a network of the engine, or `"host"`; the engine's default when not given.
        user: `uid[:gid]` to run as; the image's own when not given.
        input_path: folder here that callers may name files in.
        output_path: folder here for files of runs; the container then runs as the calling user.
        workers: processes that answer calls.
        extra: further arguments of the engine's `run`.

    Raises:
        InputError: they cannot be (`bad_option`).
    """

    gpus: Gpus = None
    memory: str | None = None
    volumes: Volumes = None
    env: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    user: str | None = None
    input_path: str | Path | None = None
    output_path: str | Path | None = None
    workers: int = 1
    extra: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.network == "none":
            raise InputError(
                "With network='none' nobody could call the component.", code="bad_option"
            )

    def arguments(self, engine: Engine, *, inputs: str, outputs: str) -> list[str]:
        """The engine's arguments.

        Args:
            engine: podman and docker differ in how they name devices and users.
            inputs: where the image expects files to read.
            outputs: where it writes files of runs.
        """
        arguments = [*_devices(self.gpus, engine)]
        for source, target, mode in (*_mounts(self.volumes), *self._folders(inputs, outputs)):
            arguments += ["--volume", f"{source}:{target}:{mode}"]
        for name, value in self.env.items():
            arguments += ["--env", f"{name}={value}"]
        for flag, given in (("--memory", self.memory), ("--network", self.network)):
            arguments += [] if given is None else [flag, given]
        return [*arguments, *self._who(engine), *engine.run_args, *self.extra]

    def _folders(self, inputs: str, outputs: str) -> Iterator[tuple[Path, str, str]]:
        if self.input_path is not None:
            yield _existing(self.input_path), inputs, "ro"
        if self.output_path is not None:
            Path(self.output_path).mkdir(parents=True, exist_ok=True)
            yield _existing(self.output_path), outputs, "rw"

    def _who(self, engine: Engine) -> list[str]:
        if self.user is not None:
            return ["--user", self.user]
        if self.output_path is None:
            return []
        # Files of a run belong to whoever started it, as if it had run without a container.
        keep = ["--userns", "keep-id"] if engine.kind == "podman" and os.getuid() else []
        return [*keep, "--user", f"{os.getuid()}:{os.getgid()}"]


def _devices(gpus: Gpus, engine: Engine) -> list[str]:
    if not gpus:
        return []
    names = [gpus] if isinstance(gpus, str) else [str(gpu) for gpu in gpus]
    if engine.kind == "podman":
        return [part for name in names for part in ("--device", f"nvidia.com/gpu={name}")]
    return ["--gpus", "all" if names == ["all"] else f'"device={",".join(names)}"']


def _mounts(volumes: Volumes) -> Iterator[tuple[Path, str, str]]:
    if isinstance(volumes, Mapping):
        pairs = [(str(source), target) for source, target in volumes.items()]
    else:
        pairs = [(text.partition(":")[0], text.partition(":")[2]) for text in volumes or ()]
    for source, target in pairs:
        place, _, mode = target.partition(":")
        if not place.startswith("/") or mode not in ("", "ro", "rw"):
            raise InputError(
                f"Expected a volume such as /data:/data:rw; found {source}:{target}.",
                code="bad_option",
            )
        yield _existing(source), place, mode or "ro"


def _existing(folder: str | Path) -> Path:
    path = Path(folder).resolve()
    if not path.exists():
        raise InputError(f"There is no {path} to give to the container.", code="bad_option")
    return path
