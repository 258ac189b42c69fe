"""One call of an endpoint in a container that exists for this call only."""

from __future__ import annotations

from collections.abc import Sequence

from chainrule._errors import ComponentError
from chainrule.deploy.images._engine import Engine
from chainrule.deploy.images._image import ComponentImage
from chainrule.deploy.images._options import RunOptions


def call_image(image: str, call: Sequence[str], options: RunOptions, *, engine: Engine) -> int:
    """Have a container make one call, `["apply", "{…}"]`, on this process's own streams, and remove it.

    Returns:
        The exit code of the call.
    """
    return engine.pass_through(*_one_call(image, call, options, engine))


def ask_image(
    image: str, call: Sequence[str], options: RunOptions, *, engine: Engine
) -> tuple[str, str]:
    """Have a container make one call and remove it.

    Returns:
        What it wrote on standard output, and on standard error.

    Raises:
        ComponentError: the call failed (`container_call_failed`).
    """
    done = engine.run(_one_call(image, call, options, engine))
    if done.returncode:
        raise ComponentError(
            f"`{call[0]}` failed in a container of {image} with status {done.returncode}:\n"
            f"{done.stderr.strip()[-2000:]}",
            code="container_call_failed",
            details={"exit_code": done.returncode},
        )
    return done.stdout, done.stderr


def _one_call(image: str, call: Sequence[str], options: RunOptions, engine: Engine) -> list[str]:
    found = ComponentImage.find(engine, image)
    arguments = options.arguments(engine, **found.folders)
    with_files = options.input_path is not None or options.output_path is not None
    command = found.one_call_command(list(call), with_files=with_files)
    return ["run", "--rm", "--no-healthcheck", *arguments, image, *command]
