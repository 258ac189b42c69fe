"""`chainrule dashboard`: one page over several servers."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from chainrule._errors import InputError
from chainrule.cli._remote import open_server
from chainrule.client.internal import Server


def add_arguments(parser: ArgumentParser) -> None:
    """The servers, their tokens, and where the page is."""
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="of the servers, such as http://localhost:8000"
    )
    parser.add_argument(
        "--token-file",
        action="append",
        default=[],
        metavar="[URL=]FILE",
        help="token for one server, or for all that have none of their own; repeat for more",
    )
    parser.add_argument("--port", type=int, default=8080, help="of the page; 0 picks a free one")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds to wait for a server")


def run(options: Namespace) -> int:
    """Serve the page on this machine until Ctrl-C."""
    from chainrule.cli._dashboard_app import serve_dashboard

    files = _token_files(options.urls, options.token_file)
    servers = {url: _server(url, files[url], options.timeout) for url in options.urls}
    announce = _announce_json if options.json else _announce
    serve_dashboard(servers, port=options.port, on_ready=announce)
    return 0


def _server(url: str, token_file: Path | None, timeout: float) -> Server:
    return open_server(Namespace(url=url, token_file=token_file), timeout_s=timeout)


def _token_files(urls: Sequence[str], given: Sequence[str]) -> dict[str, Path | None]:
    """Which file has the token of which server.

    Raises:
        InputError: a token is given for a server that is not on the list (`bad_option`).
    """
    own: dict[str, Path] = {}
    for_all: Path | None = None
    for entry in given:
        url, _, file = entry.rpartition("=")
        if not url:
            for_all = Path(file)
        elif url in urls:
            own[url] = Path(file)
        else:
            raise InputError(
                f"--token-file names {url}, which is not one of the servers: {', '.join(urls)}.",
                code="bad_option",
            )
    return {url: own.get(url, for_all) for url in urls}


def _announce(url: str) -> None:
    sys.stderr.write(f"Dashboard at {url} (Ctrl-C stops it)\n")


def _announce_json(url: str) -> None:
    sys.stdout.write(json.dumps({"url": url}) + "\n")
    sys.stdout.flush()
