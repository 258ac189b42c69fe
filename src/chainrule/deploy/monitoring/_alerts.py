"""What should wake an operator, and when: rules for Prometheus."""

from __future__ import annotations

from typing import Any, NamedTuple


class _Alert(NamedTuple):
    """One rule: it fires when `expression` has had results for as long as `lasts`."""

    name: str
    severity: str
    expression: str
    lasts: str
    summary: str
    action: str


_BY = "by (instance, component)"
# Servers that share their jobs all report the same numbers: one alert for all of them.
_SHARED = "max without (instance, pod)"
_ALERTS = (
    _Alert(
        "ChainruleServerDown",
        "critical",
        'up{job="@JOB@"} == 0',
        "2m",
        "{{ $labels.instance }} does not answer.",
        "Look at the log of the server; its jobs are kept if it has a jobs folder.",
    ),
    _Alert(
        "ChainruleNotReady",
        "critical",
        'chainrule_ready{job="@JOB@"} == 0',
        "2m",
        "{{ $labels.component }} on {{ $labels.instance }} has no worker that works.",
        "Its workers end at once or cannot load the component: the log says why.",
    ),
    _Alert(
        "ChainruleWorkersCrash",
        "warning",
        f'sum {_BY} (increase(chainrule_worker_restarts_total{{job="@JOB@"}}[15m])) > 3',
        "0m",
        "Workers of {{ $labels.component }} on {{ $labels.instance }} were replaced {{ $value | humanize }} "
        "times in 15 minutes.",
        "The log has the signal or the exception; too little memory is the usual cause.",
    ),
    _Alert(
        "ChainruleErrors",
        "warning",
        f'sum {_BY} (rate(chainrule_requests_total{{job="@JOB@",status=~"5.."}}[10m])) '
        f'/ sum {_BY} (rate(chainrule_requests_total{{job="@JOB@"}}[10m])) > 0.05',
        "10m",
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.component }} on "
        "{{ $labels.instance }} fail.",
        "The log names the file and the line of the component that failed.",
    ),
    _Alert(
        "ChainruleTurnsCallersAway",
        "warning",
        f'sum {_BY} (rate(chainrule_calls_turned_away_total{{job="@JOB@"}}[5m])) > 0',
        "5m",
        "The queue of {{ $labels.component }} on {{ $labels.instance }} is full: callers get 503.",
        "Add workers (--workers) or servers, or a longer queue (--max-queue).",
    ),
    _Alert(
        "ChainruleQueueLong",
        "warning",
        'chainrule_calls_waiting{job="@JOB@"} / (chainrule_queue_limit{job="@JOB@"} > 0) > 0.8',
        "10m",
        "The queue of {{ $labels.component }} on {{ $labels.instance }} is "
        "{{ $value | humanizePercentage }} full.",
        "Add workers or servers before callers are turned away.",
    ),
    _Alert(
        "ChainruleTimeouts",
        "warning",
        f'sum {_BY} (rate(chainrule_calls_timed_out_total{{job="@JOB@"}}[15m])) > 0',
        "15m",
        "Calls of {{ $labels.component }} on {{ $labels.instance }} exceed --timeout.",
        "Each costs a worker. Callers of long calls should submit jobs.",
    ),
    _Alert(
        "ChainruleFilesNotUsed",
        "warning",
        'chainrule_files_current{job="@JOB@"} == 0',
        "5m",
        "{{ $labels.instance }} cannot use its new {{ $labels.files }} file and goes on with the old one.",
        "The log of the server says what is wrong with the file.",
    ),
    _Alert(
        "ChainruleTokenLimited",
        "info",
        'sum by (instance, token) (rate(chainrule_token_limited_total{job="@JOB@"}[15m])) > 0',
        "15m",
        "{{ $labels.token }} is refused by its limits on {{ $labels.instance }}.",
        "Raise its limits in the token file, or ask its owner to send less.",
    ),
    _Alert(
        "ChainruleJobsStoreDown",
        "critical",
        'chainrule_jobs_store_up{job="@JOB@"} == 0',
        "2m",
        "{{ $labels.instance }} cannot read its jobs.",
        "Look at the database of jobs, or the disk with the jobs folder; the log says what is wrong.",
    ),
    _Alert(
        "ChainruleJobsWait",
        "warning",
        f'{_SHARED} (chainrule_jobs_oldest_waiting_seconds{{job="@JOB@"}}) > 3600',
        "5m",
        "A job of {{ $labels.component }} has waited for {{ $value | humanizeDuration }}.",
        "Add workers or servers, or look with `chainrule job list URL` for jobs that do not end.",
    ),
    _Alert(
        "ChainruleJobsFail",
        "warning",
        f'{_SHARED} (delta(chainrule_jobs{{job="@JOB@",state="failed"}}[1h])) > 5',
        "0m",
        "{{ $value | humanize }} jobs of {{ $labels.component }} failed within an hour.",
        "`chainrule job list URL --state failed` lists them with their errors.",
    ),
)


def alert_rules(job: str = "chainrule") -> dict[str, Any]:
    """Rules for Prometheus, as `rule_files` take them.

    Args:
        job: the `job_name` under which Prometheus scrapes the servers.

    Example:
        >>> from chainrule.deploy.monitoring import alert_rules
        >>> rules = alert_rules()["groups"][0]["rules"]
        >>> rules[0]["alert"], rules[0]["expr"]
        ('ChainruleServerDown', 'up{job="chainrule"} == 0')
    """
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression.replace("@JOB@", job),
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "action": alert.action},
        }
        for alert in _ALERTS
    ]
    return {"groups": [{"name": "chainrule", "rules": rules}]}
