"""`chainrule check`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from chainrule.cli._arguments import add_component_or_url
from chainrule.cli._facts import endpoint_facts
from chainrule.cli._source import read_document
from chainrule.cli._streams import result_stream
from chainrule.cli._tables import table_text
from chainrule.runtime.internal import full_name


def add_arguments(parser: ArgumentParser) -> None:
    """Only the component."""
    add_component_or_url(parser)


def run(options: Namespace) -> int:
    """Load a component or ask its server, and say which endpoints there are."""
    with result_stream() as stdout:
        # Made here to find fields that cannot be described to callers; asked for where it is served.
        document = read_document(options)
        info, endpoints = document["info"], endpoint_facts(document)
        if options.json:
            text = json.dumps({"ok": True, "name": info["title"], "endpoints": endpoints}) + "\n"
        else:
            title = f"{full_name(info['title'], info['version'])} is fine"
            text = table_text(title, ("endpoint", "available"), list(endpoints.items()))
        stdout.write_text(text)
    return 0
