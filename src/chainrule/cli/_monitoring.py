"""`chainrule deploy alerts` and `chainrule deploy grafana`: files for Prometheus and Grafana."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

import yaml

from chainrule.cli._output import write_text
from chainrule.deploy.monitoring import alert_rules, dashboard


def add_alert_arguments(parser: ArgumentParser) -> None:
    """The job of Prometheus."""
    _add_job(parser)
    parser.set_defaults(handler=_alerts)


def add_grafana_arguments(parser: ArgumentParser) -> None:
    """The job of Prometheus."""
    _add_job(parser)
    parser.set_defaults(handler=_grafana)


def _add_job(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--job",
        default="chainrule",
        metavar="NAME",
        help="The job_name under which Prometheus scrapes the servers (default: chainrule)",
    )


def _alerts(options: Namespace) -> int:
    rules = alert_rules(options.job)
    write_text(
        json.dumps(rules, indent=2) + "\n"
        if options.json
        else yaml.safe_dump(rules, sort_keys=False, width=110, allow_unicode=True)
    )
    return 0


def _grafana(options: Namespace) -> int:
    write_text(json.dumps(dashboard(options.job), indent=2) + "\n")
    return 0
