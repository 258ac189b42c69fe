"""`chainrule serve`."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from chainrule.cli._arguments import add_derive_hvp, add_folders
from chainrule.runtime._config import ComponentConfig
from chainrule.serve import serve

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """The components, and how the server is run."""
    parser.add_argument(
        "components", metavar="COMPONENT", nargs="+", help="one or several components"
    )
    add_folders(parser)
    add_derive_hvp(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free one")
    parser.add_argument(
        "--workers",
        "--num-workers",
        type=int,
        default=1,
        help="processes per component; 0: a thread",
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="of one call")
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="for calls under way at the end",
    )
    parser.add_argument("--max-queue", type=int, default=64, help="calls that may wait")
    parser.add_argument("--token-file", type=Path, help="callers must send the token in this file")
    parser.add_argument(
        "--insecure", action="store_true", help="listen beyond loopback without a token"
    )
    parser.add_argument("--debug", action="store_true", help="tracebacks to callers; loopback only")
    parser.add_argument("--tls-certificate", type=Path, help="file, for HTTPS")
    parser.add_argument("--tls-key", type=Path, help="file, for HTTPS")


def run(options: Namespace) -> int:
    """Serve until a signal."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    serve(
        options.components,
        config=ComponentConfig(
            input_path=options.input_path,
            output_path=options.output_path,
            derive_hvp=options.derive_hvp,
        ),
        on_ready=_announce,
        host=options.host,
        port=options.port,
        workers=options.workers,
        timeout_s=options.timeout,
        grace_s=options.grace,
        max_queue=options.max_queue,
        token_file=options.token_file,
        insecure=options.insecure,
        debug=options.debug,
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
    )
    return 0


def _announce(url: str) -> None:
    sys.stderr.write(f"Serving at {url}\n")
