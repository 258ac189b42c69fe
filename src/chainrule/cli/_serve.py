"""`chainrule serve`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from chainrule._codec import DEFAULT_LIMITS, Limits
from chainrule._folders import state_folder
from chainrule.cli._sources import add_derive_hvp, add_folders, check_exists
from chainrule.runtime.internal import ComponentConfig, log_handler
from chainrule.serve import ServeOptions, serve


def add_arguments(parser: ArgumentParser) -> None:
    """The components, and how the server is run."""
    parser.add_argument(
        "components", metavar="COMPONENT", nargs="+", help="one or several components"
    )
    add_folders(parser)
    add_derive_hvp(parser)
    _add_cache(parser)
    for limit, help in _LIMITS.items():
        default = getattr(DEFAULT_LIMITS, limit)
        parser.add_argument(_flag(limit), **_number(_positive, default, help, _N))
    for setting, (flags, option) in _FLAGS.items():
        parser.add_argument(*flags.split(), dest=setting, **option)
    parser.add_argument(
        "--engine",
        choices=("processes", "ray"),
        default="processes",
        help="where calls are answered; with ray, COMPONENT may be pool:NAME",
    )
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="of the cluster, with --engine ray"
    )
    parser.set_defaults(run=run)


def _add_cache(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        metavar="NAME",
        action="append",
        default=[],
        help="component whose results are kept for equal requests, '*' for all; repeat for more",
    )
    parser.add_argument("--cache-folder", **_path("where; in memory without it", "FOLDER"))
    parser.add_argument("--max-cache-bytes", **_number(int, 1 << 30, "of all results", "BYTES"))
    parser.add_argument(
        "--max-residual-bytes",
        **_number(
            _natural,
            1 << 30,
            "Keep at most this much of what forward passes leave for derivatives; 0 keeps nothing "
            "(default: 1 GiB)",
            "BYTES",
        ),
    )


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _number(
    kind: Callable[[str], float], default: float | None, help: str, metavar: str
) -> dict[str, Any]:
    return {"type": kind, "default": default, "help": help, "metavar": metavar}


def _path(help: str, metavar: str = "FILE") -> dict[str, Any]:
    return {"type": Path, "help": help, "metavar": metavar}


def _on(help: str) -> dict[str, Any]:
    return {"action": "store_true", "help": help}


def _off(help: str) -> dict[str, Any]:
    return {"action": "store_false", "help": help}


# Field of `Limits` → what it bounds.
_LIMITS = {
    "max_body_bytes": "of one request, as it is received",
    "max_array_bytes": "of one array, decoded",
    "max_total_bytes": "of all arrays of a request, decoded",
    "max_expanded_bytes": "of what a request compresses or refers to; never more than a worker's share "
    "of --max-inflight-bytes",
    "max_fields": "of one request",
    "max_depth": "how deep the data of a request may be nested",
}
_D = ServeOptions()
_S, _N, _B = "SECONDS", "N", "BYTES"
# Field of `ServeOptions` → its flags, and what argparse is told about them.
_FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "host": ("--host", {"default": _D.host, "help": "address to listen on"}),
    "port": ("--port", _number(int, _D.port, "0 picks a free one", _N)),
    "workers": (
        "--workers --num-workers",
        _number(int, _D.workers, "processes per component; 0: a thread", _N),
    ),
    "timeout_s": ("--timeout", _number(float, None, "of one call", _S)),
    "grace_s": ("--grace", _number(float, _D.grace_s, "for calls under way at the end", _S)),
    "read_timeout_s": (
        "--read-timeout",
        _number(float, _D.read_timeout_s, "for the next part of a request or answer", _S),
    ),
    "startup_timeout_s": (
        "--startup-timeout",
        _number(float, _D.startup_timeout_s, "for loading a component", _S),
    ),
    "max_queue": ("--max-queue", _number(int, _D.max_queue, "calls that may wait", _N)),
    "max_connections": (
        "--max-connections",
        _number(int, _D.max_connections, "with a request under way at a time", _N),
    ),
    "max_inflight_bytes": (
        "--max-inflight-bytes",
        _number(int, _D.max_inflight_bytes, "bodies of all calls under way together", _B),
    ),
    "token_file": ("--token-file", _path("callers must send the token in this file")),
    "insecure": ("--insecure", _on("listen beyond loopback without a token")),
    "debug": ("--debug", _on("tracebacks to callers; loopback only")),
    "tls_certificate": ("--tls-certificate", _path("for HTTPS")),
    "tls_key": ("--tls-key", _path("for HTTPS")),
    "log_file": ("--log-file", _path("for the output of worker processes, rotated at 10 MiB")),
    "log_format": (
        "--log-format",
        {"choices": ("text", "json"), "default": "text", "help": "of log lines"},
    ),
    "access_log": ("--access-log", _on("log one line per request, without its data")),
    "traces_to": (
        "--traces",
        {"metavar": "URL|FILE", "help": "OpenTelemetry spans: OTLP collector or JSON lines"},
    ),
    "same_host": ("--no-same-host", _off("offer no shared memory to clients of this host")),
    "merge_up_to": (
        "--merge-up-to",
        _number(int, None, "calls merged into one, if the component batches; 0: none", _N),
    ),
    "merge_delay_s": (
        "--merge-delay",
        _number(float, _D.merge_delay_s, "that a call waits for others", _S),
    ),
    "jobs_folder": (
        "--jobs-folder",
        _path(
            "where jobs are kept, to be found again after a restart; by default one of this user's, for "
            "these components on this port, and none that lasts with port 0",
            "FOLDER",
        ),
    ),
    "job_timeout_s": ("--job-timeout", _number(float, None, "of one job", _S)),
    "job_retention_s": (
        "--job-retention",
        _number(float, _D.job_retention_s, "how long results of jobs are kept", _S),
    ),
    "max_job_bytes": (
        "--max-job-bytes",
        _number(int, _D.max_job_bytes, "results of all jobs together", _B),
    ),
    "max_jobs": ("--max-jobs", _number(int, _D.max_jobs, "that may wait, per component", _N)),
}


def run(options: Namespace) -> int:
    """Serve until a signal."""
    logging.basicConfig(level=logging.INFO, handlers=[log_handler(options.log_format)])
    for component in options.components:
        if not component.startswith("pool:"):
            check_exists(component)
    if options.jobs_folder is not None:
        _serve(options)
        return 0
    options.jobs_folder = _usual_jobs_folder(options)
    try:
        _serve(options)
    finally:
        _leave(options.jobs_folder)
    return 0


def _serve(options: Namespace) -> None:
    serve(
        options.components,
        config=ComponentConfig(
            input_path=options.input_path,
            output_path=options.output_path,
            derive_hvp=options.derive_hvp,
            cache=frozenset(options.cache),
            cache_folder=options.cache_folder,
            max_cache_bytes=options.max_cache_bytes,
            max_residual_bytes=options.max_residual_bytes,
            limits=Limits(**{limit: getattr(options, limit) for limit in _LIMITS}),
        ),
        on_ready=_announce_json if options.json else _announce,
        make_pool=_make_pool(options),
        **{setting: getattr(options, setting) for setting in _FLAGS},
    )


def _usual_jobs_folder(options: Namespace) -> Path | None:
    """The same folder whenever the same components are served on the same port."""
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


def _leave(folder: Path | None) -> None:
    """Leave no folder behind for a server that did not start, and kept nothing in it."""
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _make_pool(options: Namespace) -> Any:
    if options.engine == "processes":
        return None
    from chainrule.deploy.ray import engine

    return engine(options.ray_address)


def _announce(url: str) -> None:
    sys.stderr.write(f"Serving at {url}\n")


def _announce_json(url: str) -> None:
    """One line for the program that started the server: its URL and process."""
    sys.stdout.write(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()
