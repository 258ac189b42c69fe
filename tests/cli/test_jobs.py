"""Commands about a server: what it serves, its load, its jobs; `serve --json`."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from chainrule.cli import main
from chainrule.client import Component
from chainrule.errors import ComponentError, LimitError, TransportError

pytest.importorskip("uvicorn")

COMPONENT = """
import time
from chainrule import component
from chainrule.runtime import progress

@component
def slow(x: float, seconds: float = 0.0) -> float:
    print("working on it")
    progress(0.5, "half of it")
    if x == 13:
        print("log \\x1b[31mred\\x1b[0m")
        progress(0.75, "\\x1b]0;owned\\x07 title")
    if x == -13:
        raise ValueError("\\x1b[2J gone")
    if x == -60:
        raise ValueError("long " + 60 * "word " + "end")
    if x < 0:
        raise ValueError("negative")
    time.sleep(seconds)
    return 2 * x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the server runs."""
    return tmp_path_factory.mktemp("cli-jobs")


@pytest.fixture(scope="module")
def url(folder):
    (folder / "slow.py").write_text(COMPONENT)
    (folder / "token").write_text("0123456789abcdef0123")
    command = [
        sys.executable, "-m", "chainrule", "serve", "slow.py", "--port", "0", "--workers", "1",
        "--json", "--jobs-folder", "jobs", "--no-same-host", "--log-file", "workers.log",
        "--max-connections", "50", "--max-inflight-bytes", "1000000", "--read-timeout", "5",
        "--startup-timeout", "60", "--grace", "1", "--max-body-bytes", "500000", "--max-depth", "9",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        facts = json.loads(server.stdout.readline())
        assert facts["pid"] == server.pid
        yield facts["url"]
        server.send_signal(signal.SIGTERM)
        assert server.stdout.read() == "", "one line on standard output, and nothing else"


@pytest.fixture
def component(url):
    with Component.from_url(url) as found:
        yield found


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    out = capsys.readouterr()
    return left.value.code, out.out, out.err


def test_jobs_and_logs(url, component, folder, capsys):
    job, failing = component.submit("apply", {"x": 1.0}), component.submit("apply", {"x": -1.0})
    code, out, err = run(capsys, "job", "logs", url, job.id, "--follow")
    assert (code, out) == (0, "working on it\n")
    assert "half of it" in err
    assert "[succeeded 100 %]" in err
    code, _, err = run(capsys, "job", "logs", url, failing.id, "-f")
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("[failed 50 %] apply raised ValueError: negative at …/slow.py:")
    assert run(capsys, "job", "logs", url, job.id)[:2] == (0, "working on it\n")
    assert (folder / "jobs" / "jobs.sqlite").exists()
    assert "working on it" in (folder / "workers.log").read_text()
    code, out, _ = run(capsys, "job", "list", url, "--json", "--limit", "2")
    assert [entry["id"] for entry in json.loads(out)] == [failing.id, job.id]
    shown = run(capsys, "job", "show", url, failing.id)[1]
    assert "[component_failed]" in shown
    assert "{" not in shown
    code, out, _ = run(capsys, "job", "list", url, "--state", "failed")
    assert code == 0
    assert (
        failing.id in out
    )  # whole, however narrow the terminal is: `chainrule job logs` asks for it
    assert job.id not in out
    code, out, _ = run(capsys, "job", "logs", url, job.id, "--follow", "--json")
    assert {"event": "log", "job": None, "line": "working on it"} in map(
        json.loads, out.splitlines()
    )
    assert json.loads(out.splitlines()[-1])["job"]["state"] == "succeeded"


def test_what_is_served(url, capfd, tmp_path):
    """Described alike, by its URL and by its files."""
    file = tmp_path / "slow.py"
    file.write_text(COMPONENT)
    for command in ("inspect", "schema", "check"):
        here, there = (run(capfd, command, place, "--json") for place in (str(file), url))
        assert (here[0], there[0]) == (0, 0)
        here, there = json.loads(here[1]), json.loads(there[1])
        if command == "schema":  # a server describes its jobs beside its component
            here, there = (
                facts["components"]["schemas"]["Apply_InputSchema"] for facts in (here, there)
            )
        assert there == here
    assert run(capfd, "diff", url, str(file))[:2] == (0, "No change that callers could notice.\n")


def test_limits_of_a_request(component):
    with pytest.raises(LimitError) as caught:
        component.apply({"x": 1.0, "more": "a" * 600_000})
    assert caught.value.code == "body_too_large"
    with pytest.raises(LimitError) as caught:
        component.apply({"x": 1.0, "more": json.loads('{"a":' * 9 + "1" + "}" * 9)})
    assert caught.value.code == "too_deep"


def test_regression_tests_of_what_is_served(url, capfd, tmp_path, monkeypatch):
    """Recorded over HTTP and by the files, and the other way round."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "slow.py"
    file.write_text(COMPONENT)
    for place in (url, str(file)):
        for x, *options in (("1.5",), ("-1.0", "--expect-error")):
            assert run(capfd, "record", place, "apply", "--set", f"x={x}", *options)[0] == 0
    assert len(list(tmp_path.glob("test_cases/test_apply_*.json"))) == 4
    for place in (url, str(file)):
        code, out, _ = run(capfd, "test", place, "--json")
        assert code == 0, out
        assert len(json.loads(out)) == 4


def test_cancel(url, component, capsys):
    job = component.submit("apply", {"x": 1.0, "seconds": 3600.0})
    code, out, _ = run(capsys, "job", "cancel", url, job.id)
    assert (code, out) == (0, f"{job.id} cancelled\n")
    assert job.status == "cancelled"
    done = component.submit("apply", {"x": 1.0})
    assert done.result(300) == {"result": 2.0}
    assert run(capsys, "job", "cancel", url, done.id)[0] == 1


def test_top(url, component, capsys):
    component.submit("apply", {"x": 1.0}).result(300)
    code, out, _ = run(capsys, "top", url)
    assert code == 0
    for word in ("slow", "requests", "latency", "queue", "workers", "jobs", "succeeded"):
        assert word in out
    assert "unknown" not in out  # the author gave no version
    with pytest.raises(ComponentError):
        component.submit("apply", {"x": -60.0}).result(300)
    out = run(capsys, "top", url)[1]
    assert out.count("word") == 60  # messages are whole
    assert "end" in out
    status = json.loads(run(capsys, "top", url, "--json")[1])
    assert status["requests"]["total"] >= 1


def test_top_is_live_in_a_terminal(url, capsys, monkeypatch):
    looks = []

    def look_again(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("chainrule.cli._watch.sleep", look_again)
    monkeypatch.setenv("TERM", "xterm")
    code, out, _ = run(capsys, "top", url, "--every", "0.5")
    assert code == 0
    assert looks == [0.5] * 3
    assert "latency" in out
    monkeypatch.setenv("TERM", "dumb")
    code, out, _ = run(capsys, "top", url)
    assert code == 0
    assert len(looks) == 3
    assert "latency" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["job", "logs", "{url}", "nothing"], "job_unknown"),
        (["job", "logs", "{url}", "nothing", "--follow"], "job_unknown"),
        (["job", "cancel", "{url}", "nothing"], "job_unknown"),
        (["inspect", "http://127.0.0.1:1"], "unreachable"),
        (["job", "list", "ftp://nowhere"], "bad_url"),
        (["job", "list", "{url}", "--component", "slw"], "component_missing"),
        (["top", "http://127.0.0.1:1"], "unreachable"),
        (["job", "list", "{url}", "--token-file", "/nowhere"], "bad_token_file"),
        (["job", "list", "{url}", "--token-file", sys.executable], "bad_token_file"),
    ],
)
def test_what_goes_wrong(url, capsys, arguments, code):
    status, out, err = run(capsys, *(argument.format(url=url) for argument in arguments))
    assert status != 0
    assert out == ""
    assert f"[{code}]" in err


def test_two_problems_of_inputs_are_listed_for_a_served_component(url, capsys):
    code, _, err = run(capsys, "apply", url, '{"inputs": {"x": "a", "seconds": [1], "z": 1}}')
    assert code == 2
    assert "- seconds:" in err
    assert "- z:" in err


def test_the_address_of_a_dashboard_for_machines(url):
    command = [sys.executable, "-m", "chainrule", "dashboard", url, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dashboard:
        address = json.loads(dashboard.stdout.readline())["url"]
        with urllib.request.urlopen(f"{address}/servers") as answer:
            assert json.load(answer)["servers"][0]["url"] == url
        dashboard.send_signal(signal.SIGINT)


def test_a_component_that_is_not_served_is_told_what_is(url):
    with pytest.raises(TransportError, match="/c/slow"):
        Component.from_url(f"{url}/c/fast").apply({"x": 1.0})


def test_a_body_that_is_too_large_is_told_the_option(component):
    with pytest.raises(LimitError, match="--max-body-bytes"):
        component.call("apply", {"inputs": {"x": 1.0, "padding": "a" * 600_000}})


def test_a_component_cannot_command_the_terminal(url, component, capfd):
    """Escape sequences in messages, logs and errors are shown, not obeyed."""
    good, bad = component.submit("apply", {"x": 13.0}), component.submit("apply", {"x": -13.0})
    assert good.result(300)["result"] == 26.0
    with pytest.raises(ComponentError) as caught:
        bad.result(300)
    assert "\x1b" not in str(caught.value)
    commands = [
        ["job", "list", url],
        ["job", "show", url, good.id],
        ["job", "show", url, bad.id],
        ["job", "logs", url, good.id],
        ["job", "logs", url, bad.id, "--follow"],
        ["top", url, "--once"],
        ["apply", url, "--set", "x=-13.0"],
        ["inspect", url],
    ]
    for command in commands:
        for options in ([], ["--json"]):
            with pytest.raises(SystemExit):
                main([*command, *options])
            shown = "".join(capfd.readouterr())
            assert not {"\x1b", "\x07"} & set(shown), (command, shown)
            assert shown


@pytest.mark.parametrize("command", ["job list", "top --once", "inspect", "apply --set x=1.0"])
def test_an_output_that_cannot_be_written(url, command):
    """`>&-` closes standard output; `/dev/full` has no room."""
    name, *rest = command.split(" -", 1)
    words = [*name.split(), url, *(f"-{rest[0]}".split() if rest else [])]
    line = " ".join([sys.executable, "-m", "chainrule", *words])
    for end, code in ((">&-", "output_closed"), (">/dev/full", "output_failed")):
        done = subprocess.run(["sh", "-c", f"{line} {end}"], stderr=subprocess.PIPE, text=True)
        assert "Traceback" not in done.stderr
        assert f"[{code}]" in done.stderr
        assert done.returncode in (1, 2)
    done = subprocess.run(["sh", "-c", f"{line} 2>&- | head -c 0"], stderr=subprocess.PIPE)
    assert done.stderr == b""


@pytest.mark.parametrize(
    "words", ["--help", "--version", "init --help", "job --help", "completion bash"]
)
def test_help_that_cannot_be_written(words):
    line = f"{sys.executable} -m chainrule {words}"
    for end, code in ((">&-", "output_closed"), (">/dev/full", "output_failed")):
        done = subprocess.run(["sh", "-c", f"{line} {end}"], stderr=subprocess.PIPE, text=True)
        assert "Traceback" not in done.stderr
        assert f"[{code}]" in done.stderr
        assert done.returncode in (1, 2)
