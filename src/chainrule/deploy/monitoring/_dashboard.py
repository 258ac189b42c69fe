"""What an operator looks at: a dashboard for Grafana, in its classic JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_WIDTH, _HEIGHT = 12, 8

# Title → (unit of Grafana, legend → expression). `@` stands for the servers and components that are shown.
_PANELS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Requests": (
        "reqps",
        {
            "{{component}} {{endpoint}}": "sum by (component, endpoint) "
            "(rate(chainrule_requests_total{@}[$__rate_interval]))",
        },
    ),
    "Errors": (
        "reqps",
        {
            "{{component}} {{status}}": "sum by (component, status) "
            '(rate(chainrule_requests_total{@,status=~"[45].."}[$__rate_interval]))',
        },
    ),
    "Duration": (
        "s",
        {
            "{{component}} median": "histogram_quantile(0.5, sum by (component, le) "
            "(rate(chainrule_request_duration_seconds_bucket{@}[$__rate_interval])))",
            "{{component}} 99 %": "histogram_quantile(0.99, sum by (component, le) "
            "(rate(chainrule_request_duration_seconds_bucket{@}[$__rate_interval])))",
        },
    ),
    "Calls": (
        "short",
        {
            "{{component}} running": "sum by (component) (chainrule_calls_running{@})",
            "{{component}} waiting": "sum by (component) (chainrule_calls_waiting{@})",
            "{{component}} queue limit": "sum by (component) (chainrule_queue_limit{@})",
        },
    ),
    "Workers": (
        "short",
        {
            "{{component}} up": "sum by (component) (chainrule_workers{@})",
            "{{component}} replaced in 1 h": "sum by (component) "
            "(increase(chainrule_worker_restarts_total{@}[1h]))",
        },
    ),
    "Calls that did not end well": (
        "cps",
        {
            f"{{{{component}}}} {words}": "sum by (component) "
            f"(rate(chainrule_calls_{name}_total{{@}}[$__rate_interval]))"
            for name, words in (
                ("crashed", "crashed"),
                ("timed_out", "timed out"),
                ("turned_away", "turned away"),
                ("cancelled", "cancelled"),
            )
        },
    ),
    "Traffic": (
        "Bps",
        {
            f"{{{{component}}}} {name}": "sum by (component) "
            f"(rate(chainrule_{name}_bytes_total{{@}}[$__rate_interval]))"
            for name in ("received", "sent")
        },
    ),
    "Found in stores": (
        "percentunit",
        {
            f"{{{{component}}}} {kind}": "sum by (component) "
            f'(rate(chainrule_{kind}_reuse_total{{@,outcome="hit"}}[$__rate_interval])) / '
            f"(sum by (component) (rate(chainrule_{kind}_reuse_total{{@}}[$__rate_interval])) > 0)"
            for kind in ("results", "residuals")
        },
    ),
    "Requests by token": (
        "reqps",
        {
            "{{token}}": "sum by (token) "
            '(rate(chainrule_token_requests_total{job="@JOB@"}[$__rate_interval]))',
            "{{token}} beyond its {{limit}}": "sum by (token, limit) "
            '(rate(chainrule_token_limited_total{job="@JOB@"}[$__rate_interval]))',
        },
    ),
    # Servers that share their jobs all report the same numbers, so the largest counts.
    "Jobs": (
        "short",
        {"{{state}}": 'sum by (state) (max by (component, state) (chainrule_jobs{job="@JOB@"}))'},
    ),
}


def dashboard(job: str = "chainrule") -> Json:
    """A dashboard for Grafana, as its import takes it.

    Args:
        job: the `job_name` under which Prometheus scrapes the servers.

    Example:
        >>> from chainrule.deploy.monitoring import dashboard
        >>> [panel["title"] for panel in dashboard()["panels"]][:3]
        ['Requests', 'Errors', 'Duration']
    """
    panels = [
        _panel(number, title, unit, queries, job)
        for number, (title, (unit, queries)) in enumerate(_PANELS.items())
    ]
    return {
        "title": "Chainrule",
        "uid": "chainrule",
        "tags": ["chainrule"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables(job)},
        "panels": panels,
    }


def _variables(job: str) -> list[Json]:
    source = {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    query = f'label_values(chainrule_workers{{job="{job}"}}, component)'
    component = {
        "name": "component",
        "label": "Component",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "component"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }
    return [source, component]


_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _panel(number: int, title: str, unit: str, queries: Mapping[str, str], job: str) -> Json:
    shown = f'job="{job}",component=~"$component"'
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": expression.replace("@JOB@", job).replace("@", shown),
            "legendFormat": legend,
        }
        for place, (legend, expression) in enumerate(queries.items())
    ]
    row, column = divmod(number, 2)
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": targets,
    }
