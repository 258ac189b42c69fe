"""How a server is run: one immutable object, and one table from which everything else is made.

Each field of `ServeOptions` carries its bounds, its flag and its meaning. The checks, the options of
`chainrule serve`, the attributes in the docstring and the table of the reference page come from there.
"""
# ruff: noqa: RUF009 - `_option` is `dataclasses.field` with a description

from __future__ import annotations

import ipaddress
import math
from argparse import ArgumentParser
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from chainrule._errors import DefinitionError, InputError

_DATABASES = ("postgresql://", "postgres://")


@dataclass(frozen=True, kw_only=True)
class _Description:
    """What a field of `ServeOptions` says about itself.

    Attributes:
        help: what it is for, as a sentence.
        unset: what `None`, as the default, stands for.
        flags: of the command line, where they do not follow from the name.
        metavar: what stands for the value, where it does not follow from the name.
        at_least, above, at_most: bounds of a number.
        group: the part of the help of `chainrule serve` that lists it.
        is_secret: whether the value may hold a password, and is not shown.
    """

    help: str
    group: str
    unset: str | None = None
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    is_secret: bool = False

    def problem(self, value: float) -> str | None:
        """The rule that a number breaks, if any."""
        # Written so that NaN breaks every rule.
        if self.at_least is not None and not value >= self.at_least:
            return f"at least {self.at_least:g}"
        if self.above is not None and not value > self.above:
            return f"more than {self.above:g}"
        if self.at_most is not None and not value <= self.at_most:
            return f"at most {self.at_most:g}"
        return None if math.isfinite(value) else "and finite"


def _option(group: str, default: Any, help: str, **more: Any) -> Any:
    described = _Description(help=help, group=group, **more)
    return field(default=default, metadata={"option": described}, repr=not described.is_secret)


_ADDRESS, _CALLS, _LOGS, _JOBS = (
    "address and access",
    "workers and calls",
    "logs and traces",
    "jobs",
)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Settings of a server.

    Raises:
        InputError: a number is out of its bounds, or a key comes without a certificate (`bad_option`).
        DefinitionError: the settings are not safe together (`unsafe_bind`, `unsafe_debug`).
    """

    host: str = _option(_ADDRESS, "127.0.0.1", "Listen on this address.")
    port: int = _option(
        _ADDRESS, 8000, "Listen on this port; 0 picks a free one.", at_least=0, at_most=65_535
    )
    workers: int = _option(
        _CALLS,
        1,
        "Run this many processes per component; 0 runs author code in a thread of the server.",
        flags=("--workers", "--num-workers"),
        at_least=0,
    )
    timeout_s: float | None = _option(
        _CALLS,
        None,
        "Stop a call that runs longer, and replace its worker.",
        unset="no limit",
        above=0,
    )
    grace_s: float = _option(
        _CALLS, 30.0, "Let calls under way go on this long after SIGTERM.", at_least=0
    )
    drain_delay_s: float = _option(
        _CALLS,
        0.0,
        "After SIGTERM, answer calls for this long while /ready says 503, so that load balancers go "
        "elsewhere; then close the socket. A second signal ends it.",
        at_least=0,
    )
    device_exchange_share: float = _option(
        _CALLS,
        0.25,
        "For a component on a GPU: take at most this share of its memory to exchange arrays with callers on "
        "this host, in each worker; more goes through the host.",
        at_least=0,
        at_most=1,
    )
    max_queue: int = _option(
        _CALLS,
        64,
        "Let this many calls per component wait for a free worker; further callers get 503.",
        at_least=0,
    )
    max_connections: int = _option(
        _CALLS,
        1024,
        "Let this many connections have a request under way; further callers get 503, except for "
        "/health and /ready. Connections without a request are closed when there are more.",
        at_least=1,
    )
    max_inflight_bytes: int = _option(
        _CALLS,
        4 << 30,
        "Hold at most this much of the bodies of all calls under way; further callers get 503.",
        at_least=1,
    )
    max_upload_bytes: int = _option(
        _ADDRESS,
        0,
        "Let callers upload files into input_path, this much in all, and download files from output_path.",
        at_least=0,
    )
    token_file: Path | None = _option(
        _ADDRESS,
        None,
        "Require a bearer token of this file: one token, or lines of a name, a token and limits (rate=10 "
        "calls=4). It is read again when it changes.",
        unset="no token",
    )
    insecure: bool = _option(_ADDRESS, False, "Allow an address beyond loopback without a token.")
    debug: bool = _option(_LOGS, False, "Send tracebacks to callers; only on loopback.")
    tls_certificate: Path | None = _option(
        _ADDRESS,
        None,
        "Serve HTTPS with this certificate; it is read again when it changes.",
        unset="HTTP",
    )
    tls_key: Path | None = _option(
        _ADDRESS,
        None,
        "Use the key in this file with the certificate.",
        unset="the certificate's file",
    )
    read_timeout_s: float = _option(
        _CALLS,
        30.0,
        "Close a connection whose caller takes longer to send its headers or the next part of its body, "
        "or to read the next part of its answer.",
        above=0,
    )
    startup_timeout_s: float = _option(
        _CALLS, 300.0, "Fail when loading a component takes longer.", above=0
    )
    log_file: Path | None = _option(
        _LOGS,
        None,
        "Write the output of worker processes to this file, rotated at 10 MiB.",
        unset="the server's error stream",
    )
    same_host: bool = _option(
        _CALLS,
        True,
        "Offer shared memory to clients of the same host and user.",
    )
    log_format: Literal["text", "json"] = _option(
        _LOGS, "text", "Write log lines as text, or as one JSON object per line, with the run id."
    )
    access_log: bool = _option(_LOGS, False, "Log one line per request, without its data.")
    traces_to: str | None = _option(
        _LOGS,
        None,
        "Send OpenTelemetry spans to this OTLP collector, or write them to this file as JSON lines. The "
        "traces of callers are joined and handed on in any case.",
        unset="none",
        flags=("--traces",),
        metavar="URL|FILE",
    )
    merge_up_to: int | None = _option(
        _CALLS,
        None,
        "Merge up to this many concurrent calls of apply into one, for components that say how they "
        "batch; 0 merges none.",
        unset="as the component's author says",
        at_least=0,
    )
    merge_delay_s: float = _option(
        _CALLS,
        0.002,
        "Let a call wait this long for others to be merged with while a worker is free.",
        at_least=0,
    )
    umbridge: bool = _option(
        _ADDRESS, False, "Answer the UM-Bridge protocol too: /Info, /Evaluate, /Gradient and so on."
    )
    jobs_folder: Path | None = _option(
        _JOBS,
        None,
        "Keep jobs in this folder, where the next server finds them again.",
        unset="a temporary folder; chainrule serve has one per user, components and port",
    )
    jobs: str | None = _option(
        _JOBS,
        None,
        "Keep jobs in this PostgreSQL database, postgresql://USER@HOST/NAME, which several servers share; "
        "or in the one whose URL is in this file, for a URL with a password.",
        unset="in a folder",
        metavar="URL|FILE",
        is_secret=True,
    )
    jobs_objects: str | None = _option(
        _JOBS,
        None,
        "Keep the large bodies of jobs beside the database: s3://BUCKET/PREFIX, or a folder that all servers "
        "have.",
        unset="in the database, up to 256 MiB each",
        metavar="URL|FOLDER",
    )
    job_lease_s: float = _option(
        _JOBS,
        30.0,
        "Give the jobs of a server to others when the database has not heard of it for this long.",
        at_least=3,
    )
    job_timeout_s: float | None = _option(
        _JOBS,
        None,
        "Stop a job that runs longer, and replace its worker.",
        unset="no limit",
        above=0,
    )
    job_retention_s: float = _option(
        _JOBS, 7 * 24 * 3600.0, "Keep the results of jobs this long.", at_least=0
    )
    max_job_bytes: int = _option(
        _JOBS,
        10 << 30,
        "Keep at most this much of the results of all jobs; the oldest go first.",
        at_least=0,
    )
    max_jobs: int = _option(
        _JOBS, 10_000, "Let this many jobs per component wait; further callers get 503.", at_least=0
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.tls_key is not None and self.tls_certificate is None:
            raise InputError(
                "A TLS key without its certificate: pass --tls-certificate FILE too.",
                code="bad_option",
            )
        self._check_jobs()
        if is_loopback(self.host):
            return
        if self.debug:
            raise DefinitionError(
                f"debug shows tracebacks to callers and is only allowed on loopback, not on {self.host}.",
                code="unsafe_debug",
            )
        if self.token_file is None and not self.insecure:
            raise DefinitionError(
                f"Listening on {self.host} lets others call this component. Pass --token-file FILE, or "
                "--insecure if that is what you want.",
                code="unsafe_bind",
            )

    def _check_numbers(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            rule = _described(option).problem(value)
            if rule is not None:
                flag = _flags(option)[0]
                raise InputError(
                    f"{option.name} ({flag}) has to be a number, {rule}; found {value}.",
                    code="bad_option",
                )

    def _check_jobs(self) -> None:
        if self.jobs is not None and self.jobs_folder is not None:
            raise InputError(
                "Jobs are kept in a folder (--jobs-folder) or in a database (--jobs), not in both.",
                code="bad_option",
            )
        if self.jobs_objects is not None and self.jobs is None:
            raise InputError(
                "--jobs-objects is for jobs in a database: pass --jobs URL too.", code="bad_option"
            )

    def read_jobs_url(self) -> str:
        """The URL of the database of jobs, which may hold a password.

        Raises:
            DefinitionError: the file that should hold it cannot be read, or holds something else.
        """
        assert self.jobs is not None
        if self.jobs.startswith(_DATABASES):
            return self.jobs
        if "://" in self.jobs:
            raise DefinitionError(
                "--jobs takes a URL that begins with postgresql://, or a file with such a URL in it.",
                code="bad_jobs_url",
            )
        try:
            url = Path(self.jobs).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise DefinitionError(
                f"The file {self.jobs} with the URL of the database of jobs cannot be read: {reason}.",
                code="bad_jobs_url",
            ) from None
        if not url.startswith(_DATABASES):
            raise DefinitionError(
                f"The file {self.jobs} has to hold a URL that begins with postgresql://, and nothing else.",
                code="bad_jobs_url",
            )
        return url


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _described(option: Field[Any]) -> _Description:
    return option.metadata["option"]


def _flags(option: Field[Any]) -> tuple[str, ...]:
    prefix = "--no-" if option.default is True else "--"
    name = option.name.removesuffix("_s").replace("_", "-")
    return _described(option).flags or (f"{prefix}{name}",)


def _default(option: Field[Any]) -> str | None:
    """The default in words; `None` for switches, and where there is nothing to say."""
    default: Any = option.default
    if isinstance(default, bool):
        return None
    if default is None:
        return _described(option).unset
    if isinstance(default, float):
        return f"{default:g}"
    is_size = default and option.name.endswith("_bytes")
    return f"{default >> 30} GiB" if is_size else f"{default}"


def _metavar(option: Field[Any], kind: Any) -> str:
    if kind is Path:
        return "FOLDER" if option.name.endswith("_folder") else "FILE"
    named = {"_s": "SECONDS", "_bytes": "BYTES", "_share": "SHARE"}
    found = (word for suffix, word in named.items() if option.name.endswith(suffix))
    return _described(option).metavar or next(found, "N" if kind is int else option.name.upper())


def _kind(hint: Any) -> Any:
    """The type of an option that is given; `None` is what stands for no option."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if kinds and get_origin(hint) is not Literal else hint


def add_option_arguments(parser: ArgumentParser) -> None:
    """Add a flag for every field of `ServeOptions`, with the field's name as its destination."""
    hints = get_type_hints(ServeOptions)
    titles = dict.fromkeys(_described(option).group for option in fields(ServeOptions))
    groups = {title: parser.add_argument_group(title) for title in titles}
    for option in fields(ServeOptions):
        described, kind = _described(option), _kind(hints[option.name])
        default = _default(option)
        help = described.help if default is None else f"{described.help[:-1]} (default: {default})."
        settings: dict[str, Any] = {"dest": option.name, "default": option.default, "help": help}
        if option.default is True:
            settings["help"] = f"Do not {help[0].lower()}{help[1:]}"
        if kind is bool:
            settings["action"] = "store_false" if option.default is True else "store_true"
        elif get_origin(kind) is Literal:
            settings["choices"] = get_args(kind)
        else:
            settings |= {"type": kind, "metavar": _metavar(option, kind)}
        groups[described.group].add_argument(*_flags(option), **settings)


def option_table() -> str:
    """The fields of `ServeOptions` as a table in Markdown."""
    rows = [
        f"| `{option.name}` | {' '.join(f'`{flag}`' for flag in _flags(option))} "
        f"| {_default(option) or option.default} | {_described(option).help} |"
        for option in fields(ServeOptions)
    ]
    return "\n".join(["| field | flag | default | meaning |", "| --- | --- | --- | --- |", *rows])


def _documented() -> str:
    lines = (f"        {option.name}: {_described(option).help}" for option in fields(ServeOptions))
    return "\n".join([f"{ServeOptions.__doc__}", "    Attributes:", *lines])


ServeOptions.__doc__ = _documented()
