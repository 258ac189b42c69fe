"""`chainrule serve`; with `--reload`, a server that starts again when a file of its components changes.

That server is a process of its own, so that it begins with fresh modules. One that does not start, for
example because a file is not Python, waits for the next change.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from hashlib import sha256
from inspect import getdoc
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any

from chainrule._codec import Limits
from chainrule._errors import DefinitionError, InputError
from chainrule._files import state_folder
from chainrule.cli._debugging import accept_debugger, add_debug_port
from chainrule.cli._output import strong, write_error, write_text
from chainrule.cli._sources import (
    Arguments,
    add_components,
    add_derive_hvp,
    add_folders,
    check_exists,
    component_folder,
)
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import log_handler
from chainrule.serve import ServeOptions, serve
from chainrule.serve.internal import add_option_arguments

# What an operator sets of every component; the docstrings of `ComponentConfig` and `Limits` say what it is.
_KEPT = ("cache", "cache_folder", "max_cache_bytes", "max_residual_bytes")
_LIMITS = tuple(field.name for field in fields(Limits) if field.name.startswith("max_"))
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)

# What is watched with `--reload`, and how often.
_SUFFIXES = (".py", ".yaml", ".yml", ".toml", ".json", ".so", ".c")
_MOST_FILES = 5000
_EVERY_S = 0.5
_STOP_S = 30.0

Times = Mapping[Path, int]
"""File → when it was changed last."""


def add_arguments(parser: ArgumentParser) -> None:
    """The components, and how the server is run."""
    add_components(parser)
    page = parser.add_argument_group("while you write a component")
    page.add_argument(
        "--open", action="store_true", help="Open the page of the server in a browser"
    )
    page.add_argument(
        "--reload", action="store_true", help="Start again when a file of a component changes"
    )
    add_debug_port(page, "calls run in this process (--workers 0), also before one has attached")
    add_option_arguments(parser)
    running = parser.add_argument_group("how components are run")
    add_folders(running)
    add_derive_hvp(running)
    kept = parser.add_argument_group("results that are kept")
    _add_settings(kept, ComponentConfig, _KEPT, at_least=0)
    limits = parser.add_argument_group("limits of a request, which is refused beyond them")
    _add_settings(limits, Limits, _LIMITS, at_least=1)
    running.add_argument(
        "--engine",
        choices=("processes", "ray"),
        default="processes",
        help="Answer calls in processes here, or on a Ray cluster, where COMPONENT may be pool:NAME "
        "(default: processes)",
    )
    running.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="Address of the cluster, with --engine ray (default: a cluster on this machine)",
    )
    parser.set_defaults(handler=run)


def _add_settings(parser: Arguments, kind: type, names: Iterable[str], *, at_least: int) -> None:
    """A flag for each of some fields of a dataclass, with the meaning that its docstring gives."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = at_least - 1
        if value < at_least:
            raise ArgumentTypeError(f"expected an integer of at least {at_least}, found {text!r}")
        return value

    meanings = dict(_ATTRIBUTE.findall(getdoc(kind) or ""))
    for setting in fields(kind):
        if setting.name not in names:
            continue
        words = meanings.get(setting.name, "").replace("`", "").split()
        help = " ".join(words)
        taken: dict[str, Any] = {"default": setting.default}
        if isinstance(setting.default, int):
            is_size = setting.name.endswith("_bytes")
            shown = f"{setting.default >> 20} MiB" if is_size else setting.default
            help = f"{help[:-1]} (default: {shown})."
            taken |= {"type": number, "metavar": "BYTES" if is_size else "N"}
        elif setting.name.endswith("_folder"):
            taken |= {"type": Path, "metavar": "FOLDER"}
        else:
            help = f"{help} Repeat this for more."
            taken = {"action": "append", "default": [], "metavar": "NAME"}
        flag = f"--{setting.name.replace('_', '-')}"
        parser.add_argument(flag, help=f"{help[:1].upper()}{help[1:]}", **taken)


def run(options: Namespace) -> int:
    """Serve until a signal."""
    if options.reload:
        return _serve_again(options.components, options.words)
    logging.basicConfig(level=logging.INFO, handlers=[log_handler(options.log_format)])
    for component in options.components:
        if not component.startswith("pool:"):
            check_exists(component)
    if options.debug_port is not None:
        options.workers = 0
        accept_debugger(options.debug_port, wait=False)
    if options.jobs_folder is not None or options.jobs is not None:
        _serve(options)
        return 0
    options.jobs_folder = _usual_jobs_folder(options)
    try:
        _serve(options)
    except DefinitionError as error:
        if error.code != "jobs_folder_in_use":
            raise
        raise DefinitionError(
            f"These components are served on port {options.port} already, by a server that keeps its jobs in "
            f"{options.jobs_folder}. Stop it, or give this one another --port or a --jobs-folder of its own.",
            code=error.code,
        ) from error
    finally:
        _remove_if_empty(options.jobs_folder)
    return 0


def _serve(options: Namespace) -> None:
    serve(
        options.components,
        config=ComponentConfig(
            input_path=options.input_path,
            output_path=options.output_path,
            derive_hvp=options.derive_hvp,
            limits=Limits(**{limit: getattr(options, limit) for limit in _LIMITS}),
            **{setting: getattr(options, setting) for setting in _KEPT},
        ),
        on_ready=lambda url: _announce(url, as_json=options.json, is_opened=options.open),
        make_pool=_make_pool(options),
        **{field.name: getattr(options, field.name) for field in fields(ServeOptions)},
    )


def _usual_jobs_folder(options: Namespace) -> Path | None:
    """A folder that is the same whenever the same components are served on the same port."""
    if options.port == 0:
        return None
    served = "\n".join(os.path.abspath(component) for component in options.components)
    folder = state_folder("jobs", f"{options.port}-{sha256(served.encode()).hexdigest()[:12]}")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        logging.warning("Jobs will not outlive this server: %s: %s", folder, error.strerror)
        return None
    return folder


def _remove_if_empty(folder: Path | None) -> None:
    """Remove the folder of jobs where it is empty, as after a server that did not start."""
    if folder is not None:
        with suppress(OSError):
            folder.rmdir()


def _make_pool(options: Namespace) -> Any:
    if options.engine == "processes":
        return None
    from chainrule.deploy.ray import engine

    return engine(options.ray_address)


def _announce(url: str, *, as_json: bool, is_opened: bool) -> None:
    """Where the server is: a line of JSON for the program that started it, or text for people."""
    if as_json:
        write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    else:
        sys.stderr.write(f"Serving at {url}\n")
        sys.stderr.write(f"Page: {strong(f'{url}/', 2)} (Ctrl-C stops the server)\n")
    if is_opened:
        import webbrowser

        webbrowser.open(f"{url}/")


def _serve_again(components: Sequence[str], words: Sequence[str]) -> int:
    """Run `chainrule serve` with these words until a signal; start it again after every change."""
    for component in components:
        if component.startswith("pool:"):
            raise InputError(
                f"--reload watches files of components; {component} has none.", code="bad_option"
            )
        check_exists(component)
    folders = [component_folder(component) for component in components]
    again = [word for word in words if word != "--reload"]
    with _terminations_as_interrupts(), suppress(KeyboardInterrupt):
        while True:
            # Before the server starts: what changes while it loads its files starts it again.
            seen = _change_times(folders)
            with _running([sys.executable, "-m", "chainrule", "serve", *again]):
                changed = _wait_for_change(folders, seen)
            write_error(f"{changed} changed; starting again\n")
            again = [word for word in again if word != "--open"]  # the page is open already
    return 0


def _change_times(folders: Iterable[Path]) -> Times:
    """When the files in some folders were changed last; hidden and very many files are left out."""
    found = {}
    for folder in folders:
        files = (path for path in folder.rglob("*") if path.suffix in _SUFFIXES)
        shown = (path for path in files if not _is_hidden(path.relative_to(folder)))
        for path in islice(shown, _MOST_FILES):
            with suppress(OSError):
                found[path] = path.stat().st_mtime_ns
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _wait_for_change(folders: Sequence[Path], seen: Times) -> Path:
    while True:
        sleep(_EVERY_S)
        now = _change_times(folders)
        changed = [path for path in {**seen, **now} if seen.get(path) != now.get(path)]
        if changed:
            return changed[0]


@contextmanager
def _running(command: Sequence[str]) -> Iterator[None]:
    """A process that is stopped at the end, in order."""
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _terminations_as_interrupts() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that the server ends with it."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
