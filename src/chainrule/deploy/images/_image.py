"""What an image is to us: one of ours, a Tesseract's, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from chainrule._errors import CapabilityError, InputError
from chainrule.deploy.images._engine import Engine
from chainrule.deploy.images._plan import TOKEN_FILE


@dataclass(frozen=True)
class ComponentImage:
    """An image with a component in it.

    Attributes:
        id: by which the engine knows it.
        tags: its names.
        labels: what it says of itself.
        env: its variables.
        command: what it does by default.
        size_bytes: on disk.
    """

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    command: tuple[str, ...]
    size_bytes: int

    @classmethod
    def find(cls, engine: Engine, name: str) -> ComponentImage:
        """The image of a name, fetched from its registry where it is not here.

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
        """Where it reads files that callers name, and where it writes files of runs."""
        if self.is_native:
            return {"inputs": "/input", "outputs": "/output"}
        return {"inputs": "/tesseract/input_data", "outputs": "/tesseract/output_data"}

    def serve_command(self, host: str, port: int, workers: int) -> list[str]:
        """What the container runs to answer on a port."""
        where = ["--host", host, "--port", str(port), "--num-workers", str(workers)]
        if self.is_native:
            return [*self.command, *where, "--token-file", TOKEN_FILE]
        return ["serve", *where]

    def one_call_command(self, arguments: list[str], *, with_files: bool) -> list[str]:
        """What the container runs for one call: `apply '{…}'`, or `call vjp '{…}'`.

        Args:
            arguments: the command and what follows it.
            with_files: folders for files are given to the container.
        """
        # The component stands behind the command, which has two words where the endpoint is named.
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
    """Every image here that has a component."""
    ids = list(dict.fromkeys(engine.ask("images", "--quiet", "--no-trunc").split()))
    if not ids:
        return []
    found = json.loads(engine.ask("image", "inspect", *ids))
    images = [ComponentImage._of(facts) for facts in found]
    return [image for image in images if image.is_component and image.tags]
