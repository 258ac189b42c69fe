"""How a server is run: one immutable object."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chainrule._errors import DefinitionError, InputError

# Settings that are numbers, and the least that each may be.
_AT_LEAST = {
    "port": 0,
    "workers": 0,
    "grace_s": 0,
    "max_queue": 0,
    "max_connections": 1,
    "max_inflight_bytes": 1,
    "merge_up_to": 0,
    "merge_delay_s": 0,
    "job_retention_s": 0,
    "max_job_bytes": 0,
    "max_jobs": 0,
}
_MORE_THAN_ZERO = ("timeout_s", "read_timeout_s", "startup_timeout_s", "job_timeout_s")
_MAX_PORT = 65_535
_ONE_WORD = re.compile(rb"[!-~]+")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Settings of a server.

    Attributes:
        host, port: where to listen; port 0 picks a free one.
        workers: processes per component; 0 runs author code in a thread of the server.
        timeout_s: how long one call may run before its worker is replaced; `None` for ever.
        grace_s: how long calls under way may go on after SIGTERM.
        max_queue: calls per component that may wait for a free worker; beyond it callers get 503.
        max_connections: connections with a request under way at a time; beyond it callers get 503, except
            for `/health` and `/ready`. Those without a request are closed when there are more.
        max_inflight_bytes: bodies of all calls under way together; beyond it callers get 503.
        token_file: file with the bearer token that callers must send.
        insecure: allow a bind beyond loopback without a token.
        debug: tracebacks to callers; loopback only.
        tls_certificate, tls_key: files for HTTPS.
        read_timeout_s: how long a caller may take to send its headers or the next part of its body, or to
            read the next part of its answer.
        startup_timeout_s: how long loading a component may take.
        log_file: where the output of worker processes goes, rotated at 10 MiB; the server's own error
            stream when not given.
        same_host: offer shared memory to clients of the same host and user.
        log_format: `text`, or `json` for one object per line, with the run id.
        access_log: log one line per request, without its data.
        traces_to: where spans go: the address of an OTLP collector, or a file for JSON lines. Callers'
            traces are joined, and handed on, in any case.
        merge_up_to: how many concurrent single calls of `apply` are merged into one, for components that say
            how they batch; `None` leaves it to their authors, 0 is never.
        merge_delay_s: how long a call waits for others to be merged with while a worker is free.
        jobs_folder: where jobs are kept, so that the next server finds them again; a temporary folder that
            goes with the server when not given.
        job_timeout_s: how long one job may run before its worker is replaced; `None` for ever.
        job_retention_s: how long the result of a job is kept.
        max_job_bytes: results of all jobs together; beyond it the oldest go first.
        max_jobs: jobs per component that may wait; beyond it callers get 503.

    Raises:
        InputError: a number makes no sense, or a key comes without a certificate (`bad_option`).
        DefinitionError: the settings are not safe together (`unsafe_bind`, `unsafe_debug`).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    timeout_s: float | None = None
    grace_s: float = 30.0
    max_queue: int = 64
    max_connections: int = 1024
    max_inflight_bytes: int = 4 << 30
    token_file: Path | None = None
    insecure: bool = False
    debug: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    read_timeout_s: float = 30.0
    startup_timeout_s: float = 300.0
    log_file: Path | None = None
    same_host: bool = True
    log_format: Literal["text", "json"] = "text"
    access_log: bool = False
    traces_to: str | None = None
    merge_up_to: int | None = None
    merge_delay_s: float = 0.002
    jobs_folder: Path | None = None
    job_timeout_s: float | None = None
    job_retention_s: float = 7 * 24 * 3600.0
    max_job_bytes: int = 10 << 30
    max_jobs: int = 10_000

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.tls_key is not None and self.tls_certificate is None:
            raise InputError(
                "A TLS key without its certificate: pass --tls-certificate FILE too.",
                code="bad_option",
            )
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
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            self._check(name, value is None or value >= least, f"at least {least}")
        for name in _MORE_THAN_ZERO:
            value = getattr(self, name)
            self._check(name, value is None or value > 0, "more than 0")
        self._check("port", self.port <= _MAX_PORT, f"at most {_MAX_PORT}")

    def _check(self, name: str, holds: bool, rule: str) -> None:
        value = getattr(self, name)
        if not holds or (value is not None and not math.isfinite(value)):
            flag = name.removesuffix("_s").replace("_", "-")
            raise InputError(
                f"{name} (--{flag}) has to be a number, {rule}; found {value}.", code="bad_option"
            )

    def read_token(self) -> bytes | None:
        """The bearer token, or `None` where none is asked for.

        Raises:
            DefinitionError: the file cannot be read, or does not hold one word of at least 16 characters
                that a header can carry.
        """
        if self.token_file is None:
            return None
        try:
            token = Path(self.token_file).read_bytes().strip()
        except OSError as error:
            raise DefinitionError(
                f"The token file cannot be read: {error.strerror}.", code="bad_token_file"
            ) from None
        if len(token) < 16 or not _ONE_WORD.fullmatch(token):
            raise DefinitionError(
                "The token file has to hold one word of at least 16 ASCII characters. Make one with: "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                code="bad_token_file",
            )
        return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
