"""`chainrule init`: start a component from a template."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

from chainrule._errors import InputError, StorageError
from chainrule.cli._output import write_error, write_result

_FOLDER = Path(__file__).parent / "_templates"
TEMPLATES = ("function", "module", "jax", "torch", "command")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def add_arguments(parser: ArgumentParser) -> None:
    """Where to write, and which template."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        type=Path,
        default=Path(),
        help="Folder to write to (default: the working directory)",
    )
    parser.add_argument(
        "--template",
        "-t",
        choices=TEMPLATES,
        default="function",
        metavar="NAME",
        help=f"What to start from: {', '.join(TEMPLATES)}",
    )
    parser.add_argument("--name", help="Name of the component (default: the name of the folder)")
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    """Write the files of a template; an existing file is never overwritten."""
    folder: Path = options.folder
    files = _render(options.template, options.name or folder.resolve().name)
    existing = sorted(n for n in files if (folder / n).exists())
    if existing:
        raise InputError(
            f"{folder / existing[0]} exists already; nothing was written. Choose another folder.",
            code="file_exists",
        )
    _write(folder, files)
    written = [str(folder / file) for file in files]
    write_result(options, {"written": written}, "".join(f"{file}\n" for file in written))
    if not options.json:
        write_error(_next_steps(folder))
    return 0


def _next_steps(folder: Path) -> str:
    """What to do with a new component, as commands."""
    steps = (
        (f"chainrule check {folder}", "load it and list its endpoints"),
        (f"chainrule inspect {folder}", "show its inputs and outputs"),
        (f"chainrule serve {folder} --open --reload", "try it in a browser while you edit it"),
    )
    width = max(len(command) for command, _ in steps)
    lines = "".join(f"  {command:<{width}}  {what}\n" for command, what in steps)
    return f"\nEdit the file, then:\n{lines}"


def _render(template: str, name: str) -> dict[str, str]:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be a component's name: use letters, digits, '_' and '-', and start with "
            "a letter. Pass --name.",
            code="bad_name",
        )
    return {
        file.name.removesuffix(".template"): file.read_text(encoding="utf-8").replace(
            "@NAME@", name
        )
        for file in sorted((_FOLDER / template).glob("*.template"))
    }


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            file = folder / name
            file.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                file.chmod(0o755)
    except OSError as error:
        raise StorageError(f"Cannot write into {folder}: {error.strerror}.") from error
