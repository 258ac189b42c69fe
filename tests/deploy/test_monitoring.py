"""Alerts and dashboard: Prometheus reads every expression, and servers have every metric in it."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import closing
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from chainrule import Component, component
from chainrule.cli import main
from chainrule.deploy.monitoring import alert_rules, dashboard
from chainrule.serve import ServeOptions, create_app

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not installed"
)


def promtool(folder, *arguments):
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions():
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    alerts = [rule["expr"] for rule in alert_rules()["groups"][0]["rules"]]
    return panels, alerts


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """What a server has at `/metrics` after a call: the text, and name → labels."""

    @component
    def double(x: float) -> float:
        return 2 * x

    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("a-token-of-enough-letters")
    options = ServeOptions(workers=0, token_file=token)
    with TestClient(
        create_app(double, options=options),
        base_url="http://localhost",
        headers={"Authorization": "Bearer a-token-of-enough-letters"},
    ) as client:
        assert client.post("/apply", json={"inputs": {"x": 1.0}}).status_code == 200
        text = client.get("/metrics").text
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    return text, {sample.name: set(sample.labels) for sample in samples}


def test_servers_have_every_metric_with_its_labels(metrics):
    _, known = metrics
    panels, alerts = expressions()
    assert len(panels) > 12
    assert len(alerts) > 6
    for expression in (*panels, *alerts):
        found = re.findall(r"(chainrule_\w+)\{([^}]*)\}", expression)
        assert found or expression.startswith("up{"), expression
        grouped = re.search(r"by \(([^)]*)\)", expression)
        for name, selected in found:
            labels = set(re.findall(r"(\w+)=", selected)) - {"job"}
            if grouped:
                labels |= set(grouped[1].split(", ")) - {"instance"}
            # Samples of errors come with the first error.
            assert labels <= known.get(name, known["chainrule_requests_total"]), (name, labels)
            assert name in known, name


@needs_promtool
def test_prometheus_reads_the_rules_and_the_metrics(tmp_path, metrics, capsys):
    with pytest.raises(SystemExit):
        main(["deploy", "alerts"])
    (tmp_path / "alerts.yaml").write_text(capsys.readouterr().out)
    assert "SUCCESS" in promtool(tmp_path, "check", "rules", "alerts.yaml")
    panels, _ = expressions()
    records = [
        {
            "record": f"panel:{n}",
            "expr": e.replace("$component", ".*").replace("$__rate_interval", "5m"),
        }
        for n, e in enumerate(panels)
    ]
    content = {"groups": [{"name": "dashboard", "rules": records}]}
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump(content))
    assert f"{len(panels)} rules found" in promtool(tmp_path, "check", "rules", "panels.yaml")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics[0], text=True, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, "")


# What happens to a server → the alert that has to fire after half an hour, if any.
SITUATIONS = {
    "nothing": ({}, set()),
    "the server is gone": ({"up": "1 1 1 0x60"}, {"ChainruleServerDown"}),
    "its workers end at once": (
        {"ready": "1 0x60", "restarts": "0+1x60"},
        {"ChainruleNotReady", "ChainruleWorkersCrash"},
    ),
    "a worker was replaced": ({"restarts": "0x20 1x60"}, set()),
    "a tenth of the requests fails": ({"good": "0+90x60", "bad": "0+10x60"}, {"ChainruleErrors"}),
    "a hundredth fails": ({"good": "0+990x60", "bad": "0+10x60"}, set()),
    "callers are turned away": ({"turned": "0+2x60"}, {"ChainruleTurnsCallersAway"}),
    "the queue is nearly full": ({"waiting": "60x60"}, {"ChainruleQueueLong"}),
    "calls take too long": ({"timed": "0+1x60"}, {"ChainruleTimeouts"}),
    "a file cannot be used": ({"files": "0x60"}, {"ChainruleFilesNotUsed"}),
    "a caller is limited": ({"limited": "0+3x60"}, {"ChainruleTokenLimited"}),
    "the database of jobs is away": ({"store": "0x60"}, {"ChainruleJobsStoreDown"}),
    "a job waits": ({"oldest": "0+90x60"}, set()),
    "a job waits for hours": (
        {"oldest": "3500+90x60", "oldest too": "3500+90x60"},
        {"ChainruleJobsWait"},
    ),
    "jobs fail": ({"failed": "0+1x60", "failed too": "0+1x60"}, {"ChainruleJobsFail"}),
}
USUAL = {
    "up": "1x60", "ready": "1x60", "restarts": "0x60", "good": "0+100x60", "bad": "0x60",
    "turned": "0x60", "waiting": "3x60", "limit": "64x60", "timed": "0x60", "failed": "7x60",
    "oldest": "0x60", "oldest too": "0x60", "failed too": "7x60", "files": "1x60", "limited": "0x60",
    "store": "1x60",
}  # fmt: skip
SERIES = {
    "up": 'up{job="chainrule",instance="a"}',
    "ready": "chainrule_ready{@}",
    "restarts": 'chainrule_worker_restarts_total{@,worker="0"}',
    "good": 'chainrule_requests_total{@,endpoint="apply",status="200"}',
    "bad": 'chainrule_requests_total{@,endpoint="apply",status="500"}',
    "turned": "chainrule_calls_turned_away_total{@}",
    "waiting": "chainrule_calls_waiting{@}",
    "limit": "chainrule_queue_limit{@}",
    "timed": "chainrule_calls_timed_out_total{@}",
    "files": 'chainrule_files_current{job="chainrule",instance="a",files="token"}',
    "limited": 'chainrule_token_limited_total{job="chainrule",instance="a",token="t",limit="rate"}',
    "store": 'chainrule_jobs_store_up{job="chainrule",instance="a"}',
    "oldest": "chainrule_jobs_oldest_waiting_seconds{@}",
    "failed": 'chainrule_jobs{@,state="failed"}',
    # Another server with the same jobs: what both say is one alert.
    "oldest too": 'chainrule_jobs_oldest_waiting_seconds{job="chainrule",instance="b",component="heat"}',
    "failed too": 'chainrule_jobs{job="chainrule",instance="b",component="heat",state="failed"}',
}


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path):
    """Simulated by Prometheus itself: one sample a minute, looked at after half an hour."""
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(alert_rules()))
    labels = 'job="chainrule",instance="a",component="heat"'
    names = [rule["alert"] for rule in alert_rules()["groups"][0]["rules"]]
    for situation, (changes, expected) in SITUATIONS.items():
        series = [
            {"series": SERIES[name].replace("@", labels), "values": values}
            for name, values in {**USUAL, **changes}.items()
        ]
        # The alerts as a metric: promtool would else want the whole text of each.
        firing = [
            {
                "expr": f'count by (alertname) (ALERTS{{alertstate="firing",alertname="{name}"}})',
                "eval_time": "30m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}]
                if name in expected
                else [],
            }
            for name in names
        ]
        test = {"interval": "1m", "input_series": series, "promql_expr_test": firing}
        content = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": [test]}
        (tmp_path / "test.yaml").write_text(yaml.safe_dump(content))
        assert "SUCCESS" in promtool(tmp_path, "test", "rules", "test.yaml"), situation


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_a_real_prometheus_fills_the_dashboard(tmp_path):
    """A server with a token, scraped as the page says: the panels of a healthy server show something."""
    (tmp_path / "token").write_text("a-token-of-enough-letters")
    (tmp_path / "double.py").write_text(
        "from chainrule import component\n\n\n@component\ndef double(x: float) -> float:\n    return 2 * x\n"
    )
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "chainrule", "serve", "double.py", "--port", "0", "--json"]
    server = subprocess.Popen(
        [*command, "--token-file", "token", "--workers", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    prometheus = None
    try:
        url = json.loads(server.stdout.readline())["url"]
        scrape = {
            "job_name": "chainrule",
            "scrape_interval": "250ms",
            "scrape_timeout": "250ms",
            "authorization": {"credentials_file": str(tmp_path / "token")},
            "static_configs": [{"targets": [urlsplit(url).netloc]}],
        }
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
        options = [f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.path=data"]
        prometheus = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yaml", *options],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        component = Component.from_url(url, token="a-token-of-enough-letters")
        panels = {panel["title"]: panel["targets"] for panel in dashboard()["panels"]}
        for title in (
            "Errors",
            "Jobs",
            "Found in stores",
        ):  # a healthy server without jobs and stores
            del panels[title]
        waiting = {target["expr"] for targets in panels.values() for target in targets}
        for _ in range(400):
            component.apply({"x": 1.0})
            waiting = {each for each in waiting if not _found(port, each)}
            if not waiting:
                break
            assert prometheus.poll() is None
            pause.wait(0.1)
        assert waiting == set()
    finally:
        for process in (server, prometheus):
            if process is not None:
                process.terminate()
                process.communicate(timeout=60)


pause = threading.Event()  # never set


def _found(port, expression):
    asked = expression.replace("$component", ".*").replace("$__rate_interval", "1m")
    query = urlencode({"query": asked})
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=30) as answer:
            return json.load(answer)["data"]["result"] != []
    except URLError:  # it is not up yet
        return False


def test_the_dashboard(capsys):
    with pytest.raises(SystemExit):
        main(["deploy", "grafana", "--job", "other"])
    content = json.loads(capsys.readouterr().out)
    assert content == dashboard("other")
    targets = [target for panel in content["panels"] for target in panel["targets"]]
    assert all('job="other"' in target["expr"] for target in targets)
    assert all("@" not in target["expr"] for target in targets)
    places = [tuple(panel["gridPos"].values()) for panel in content["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in content["panels"]}) == len(places)
    for panel in content["panels"]:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
