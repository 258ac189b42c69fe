"""Names with a typing mistake: the command line says which one was probably meant."""

import json
import subprocess
import sys
import textwrap

import pytest

from chainrule.cli import main

PLATE = """
from typing import Annotated

from pydantic import Field
from chainrule import component
from chainrule.runtime import Array, Differentiable, Float64


@component(derivatives="finite")
def plate(
    thickness: Annotated[Differentiable[Float64], Field(gt=0, le=2)],
    load: Differentiable[Array[("n",), Float64]],
    count: Annotated[int, Field(ge=1, le=5)] = 2,
) -> Differentiable[Float64]:
    return load.sum() / thickness * count
"""
POINT = ("--set", "thickness=1", "--set", "load=[1, 2]")


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run the command line beside `plate.py` and the folder `beam`; gives (exit code, standard error)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plate.py").write_text(textwrap.dedent(PLATE))
    with pytest.raises(SystemExit):
        main(["init", "beam"])
    capsys.readouterr()

    def call(*words):
        with pytest.raises(SystemExit) as caught:
            main(list(words))
        return caught.value.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["aply", "plate.py"], "`chainrule apply`"),
        (["job", "lst"], "`chainrule job list`"),
        (["jacobain", "plate.py"], "`chainrule call jacobian`"),
        (["opnapi-schema", "plate.py"], "`chainrule schema`"),
        (["apply", "plte"], "'plate.py'"),
        (["apply", "plate.p"], "'plate.py'"),
        (["serve", "baem"], "'beam'"),
        (["check", "plate.py:plat"], "'plate'"),
        (["order", "plate.py:compnent", "[1]"], "'component'"),
        (["call", "jacobain", "plate.py"], "'jacobian'"),
        (["call", "vpj", "plate.py"], "'vjp'"),
        (["record", "plate.py", "aply"], "'apply'"),
        (["check-gradients", "plate.py", "--endpoints", "jacobain"], "'jacobian'"),
        (["check-gradients", "plate.py", *POINT, "--input-paths", "laod"], "'load'"),
        (["apply", "plate.py", "--sett", "x=1"], "'--set'"),
        (["apply", "plate.py", *POINT, "--set", "cuont=1"], "'count'"),
        (["serve", "plate.py", "--prot=1"], "'--port'"),
    ],
    ids=" ".join,
)
def test_what_was_probably_meant(run, words, meant):
    code, err = run(*words)
    assert code == (1 if words[1] == "plate.py:plat" else 2)
    assert f"id you mean {meant}?" in err


def test_the_endpoint_behind_the_component(run):
    for word in ("jacobian", "jacobain"):
        code, err = run("call", "plate.py", word)
        assert code == 2
        assert "`chainrule call jacobian plate.py`" in err


def test_short_names_of_endpoints_are_checked(run):
    code, _ = run("check-gradients", "plate.py", *POINT, "--endpoints", "jvp")
    assert code == 0


def test_components_of_a_server(run):
    command = [
        sys.executable,
        "-m",
        "chainrule",
        "serve",
        "plate.py",
        "beam",
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen([*command, "--workers", "0"], stdout=subprocess.PIPE) as server:
        url = json.loads(server.stdout.readline())["url"]
        code, err = run("apply", f"{url}/c/plat")
        server.terminate()
    assert code == 1
    assert "Did you mean 'plate'?" in err


def test_usage_errors_look_like_other_errors(run):
    code, err = run("apply")
    assert (code, err.splitlines()[1]) == (
        2,
        "Usage: chainrule apply [OPTIONS] COMPONENT [PAYLOAD]",
    )
    assert "[bad_option]" in err
    code, err = run("apply", "plate.py", "--sett", "x=1", "--json")
    assert (code, json.loads(err)["error"]["code"]) == (2, "bad_option")
    code, err = run("apply", "plate.py", "{}", "{}")
    assert "more arguments than this command takes: {}" in err
    _, err = run("serve", "plate.py", "--max-depth", "0")
    assert "expected an integer of at least 1, found '0'" in err


def test_a_number_out_of_its_bounds_is_shown(run):
    words = ("--set", "thickness=3", "--set", "load=[1]", "--set", "count=9")
    for command in (["apply"], ["call", "jacobian"], ["check-gradients"]):
        _, err = run(*command, "plate.py", *words)
        assert "less than or equal to 2; found 3 (and 1 more)" in err
        assert "- count: Input should be less than or equal to 5; found 9" in err
    _, err = run("apply", "plate.py", *words, "--json")
    assert json.loads(err)["error"]["details"]["problems"][1]["msg"].endswith("; found 9")
