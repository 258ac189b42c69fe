"""Serves components with settings given as JSON; prints the URL. The tests start it as a process."""

from __future__ import annotations

import json
import logging
import signal
import sys

from chainrule._codec import Limits
from chainrule.runtime import ComponentConfig
from chainrule.runtime.internal import log_handler
from chainrule.serve import serve

if __name__ == "__main__":
    signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # the parent of the tests may ignore it, as nohup does
    settings = json.loads(sys.argv[1])
    config = settings.pop("config", {})
    if "limits" in config:
        config["limits"] = Limits(**config["limits"])
    if settings.get("access_log"):  # as `chainrule serve` does
        handler = log_handler(settings.get("log_format", "text"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    serve(
        settings.pop("components"),
        config=ComponentConfig(**config),
        on_ready=lambda url: print(url, flush=True),  # noqa: T201
        **settings,
    )
