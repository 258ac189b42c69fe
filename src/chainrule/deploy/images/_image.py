"""What an image is to us (one of ours, a Tesseract's, or none), and what a container of it is given."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chainrule._errors import CapabilityError, InputError
from chainrule.deploy.images._engine import Engine
from chainrule.deploy.images._plan import TOKEN_FILE

Gpus = str | Sequence[str | int] | None
Volumes = Mapping[str | Path, str] | Sequence[str] | None


@dataclass(frozen=True)
class ComponentImage:
    """An image with a component in it.

    Attributes:
        id: the engine's id.
        tags: its names.
        labels: its labels.
        env: its variables.
        command: its default command.
        size_bytes: its size on disk.
    """

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    command: tuple[str, ...]
    size_bytes: int

    @classmethod
    def find(cls, engine: Engine, name: str) -> ComponentImage:
        """The image of a name, pulled from its registry where it is missing.

        Raises:
            CapabilityError: there is no such image (`image_missing`).
            InputError: there is no component in it (`not_a_component_image`).
        """
        if not engine.succeeds("image", "inspect", name):
            _pull(engine, name)
        image = cls._of(engine.inspect("image", name))
        if not image.is_component:
            raise InputError(
                f"The image {name!r} has no component: neither the label chainrule.component nor the "
                "variable TESSERACT_NAME.",
                code="not_a_component_image",
            )
        return image

    @classmethod
    def _of(cls, facts: Mapping[str, object]) -> ComponentImage:
        config = facts["Config"]
        assert isinstance(config, dict)
        tags, size = facts.get("RepoTags"), facts.get("Size")
        return cls(
            id=str(facts["Id"]),
            tags=tuple(tags) if isinstance(tags, list) else (),
            labels=config.get("Labels") or {},
            env=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
            command=tuple(config.get("Cmd") or ()),
            size_bytes=size if isinstance(size, int) else 0,
        )

    @property
    def is_native(self) -> bool:
        """Whether Chainrule built it."""
        return "chainrule.component" in self.labels

    @property
    def is_component(self) -> bool:
        """Whether there is a component in it."""
        return self.is_native or "TESSERACT_NAME" in self.env

    @property
    def component(self) -> str:
        """Name of the component."""
        return self.labels.get("chainrule.component") or self.env.get("TESSERACT_NAME", "")

    @property
    def version(self) -> str:
        """Version of the component."""
        label = self.labels.get("org.opencontainers.image.version")
        return label or self.env.get("TESSERACT_VERSION", "unknown")

    @property
    def folders(self) -> dict[str, str]:
        """Its folders for files that payloads name, and for files of runs."""
        if self.is_native:
            return {"inputs": "/input", "outputs": "/output"}
        return {"inputs": "/tesseract/input_data", "outputs": "/tesseract/output_data"}

    def serve_command(self, host: str, port: int, workers: int) -> list[str]:
        """The command that serves on a port."""
        where = ["--host", host, "--port", str(port), "--num-workers", str(workers)]
        if self.is_native:
            return [*self.command, *where, "--token-file", TOKEN_FILE]
        return ["serve", *where]

    def one_call_command(self, arguments: list[str], *, with_files: bool) -> list[str]:
        """The command for one call: `apply '{…}'`, or `call vjp '{…}'`.

        Args:
            arguments: the command and its arguments.
            with_files: whether the container has folders for files.
        """
        # The component follows the command, which has two words in `call vjp`.
        length = 2 if arguments[0] == "call" else 1
        command, rest = arguments[:length], arguments[length:]
        if not self.is_native:  # a Tesseract's commands are its endpoints
            return [command[-1], *rest]
        folders = ["--input-path", "/input", "--output-path", "/output"] if with_files else []
        return [*command, self.command[1], *rest, *folders]


def _pull(engine: Engine, name: str) -> None:
    done = engine.run(["pull", name])
    if done.returncode:
        raise CapabilityError(
            f"There is no image {name!r} here, and {engine.kind} cannot pull it: "
            f"{done.stderr.strip()[-300:]}\n`chainrule image list` shows the images of components; "
            "`chainrule image build` makes one.",
            code="image_missing",
        )


def list_images(engine: Engine) -> list[ComponentImage]:
    """Every image on this machine that has a component."""
    ids = list(dict.fromkeys(engine.ask("images", "--quiet", "--no-trunc").split()))
    if not ids:
        return []
    found = json.loads(engine.ask("image", "inspect", *ids))
    images = [ComponentImage._of(facts) for facts in found]
    return [image for image in images if image.is_component and image.tags]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a container is given; an immutable object.

    Attributes:
        gpus: `"all"`, or numbers or names of NVIDIA devices.
        memory: limit of its memory, such as `"2g"`.
        volumes: `{folder here: folder there}`, or `"here:there[:ro|rw]"`s; read-only unless `:rw` is added.
        env: its variables.
        network: a network of the engine, or `"host"`; the engine's default when not given.
        user: `uid[:gid]` to run as; the image's own when not given.
        input_path: folder on this machine that payloads may name files in.
        output_path: folder on this machine for files of runs; the container then runs as the calling user.
        workers: processes that answer calls.
        extra: further arguments of the engine's `run`.

    Raises:
        InputError: an option cannot have this value (`bad_option`).
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
                "With network='none' the component cannot be called.", code="bad_option"
            )

    def arguments(self, engine: Engine, *, inputs: str, outputs: str) -> list[str]:
        """The engine's arguments.

        Args:
            engine: the engine; podman and docker name devices and users differently.
            inputs: the image's folder for files that payloads name.
            outputs: the image's folder for files of runs.
        """
        arguments = [*_devices(self.gpus, engine)]
        for source, target, mode in (*_mounts(self.volumes), *self._folders(inputs, outputs)):
            arguments += ["--volume", f"{source}:{target}:{mode}"]
        for name, value in self.env.items():
            arguments += ["--env", f"{name}={value}"]
        for flag, given in (("--memory", self.memory), ("--network", self.network)):
            arguments += [] if given is None else [flag, given]
        return [*arguments, *self._user_arguments(engine), *engine.run_args, *self.extra]

    def _folders(self, inputs: str, outputs: str) -> Iterator[tuple[Path, str, str]]:
        if self.input_path is not None:
            yield _existing(self.input_path), inputs, "ro"
        if self.output_path is not None:
            Path(self.output_path).mkdir(parents=True, exist_ok=True)
            yield _existing(self.output_path), outputs, "rw"

    def _user_arguments(self, engine: Engine) -> list[str]:
        if self.user is not None:
            return ["--user", self.user]
        if self.output_path is None:
            return []
        # Files of a run belong to the user who started it, as they do without a container.
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
