"""The code that the page offers, taken from a real browser and run against the same server.

What it gives is compared with what the page shows, and with the closed form of a cantilever:
tip = q L⁴ / (8 E I) with I = w h³ / 12, here at L = 3.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

TOKEN = "correct-horse-battery-staple"
LENGTH = 3.0
TIP = 1150.0 * LENGTH**4 / (8 * 2.1e11 * 0.05 * 0.1**3 / 12)


def offered(page):
    """Title → code of everything on the panel."""
    page.get_by_role("tab", name="Code").click()
    blocks = page.locator(".snippet").all()
    return {b.locator("h3").inner_text(): b.locator("code").inner_text() for b in blocks}


def in_python(code):
    """The names that a snippet leaves behind."""
    names = {}
    exec(compile(code, "snippet", "exec"), names)
    names["component"].close()
    return names


def in_shell(code, folder=None):
    """What a snippet prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, cwd=folder, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def decoded(tree):
    """JSON of the wire as a tree of NumPy arrays, by the rules of the wire format."""
    if isinstance(tree, list):
        return [decoded(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("object_type") != "array":
        return {key: decoded(value) for key, value in tree.items()}
    data, dtype = tree["data"], getattr(ml_dtypes, tree["dtype"], tree["dtype"])
    if data["encoding"] == "base64":
        return np.frombuffer(base64.b64decode(data["buffer"]), dtype).reshape(tree["shape"])
    return np.array(data["buffer"], dtype)


def all_three(page, folder=None):
    """The result of the same call by Python, by curl and by the command line."""
    codes = offered(page)
    printed = [in_shell(codes[title], folder) for title in ("curl", "Command line")]
    return [in_python(codes["Python"])["result"], *(decoded(json.loads(p)) for p in printed)]


def number(text):
    return float(re.search(r"[−-]?[\d.]+(e[−-]?\d+)?", text)[0].replace("−", "-"))


def card_value(page, title):
    """The number that the page shows on a card."""
    card = page.locator("[role=tabpanel]:not([hidden]) article")
    return number(card.filter(has_text=title).locator(".value").inner_text())


def run(page):
    page.get_by_role("button", name="Run").click()
    page.locator(".message", has_text=re.compile(r"took|\[")).wait_for()


def differentiate(page, kind, untick=()):
    page.get_by_role("tab", name="Derivatives").click()
    page.get_by_label("Ask for").select_option(label=kind)
    for path in untick:
        page.get_by_role("checkbox", name=path).uncheck()
    page.get_by_role("button", name="Differentiate").click()
    page.locator(".message", has_text="took").wait_for()


@pytest.fixture
def beam(page):
    """The beam's page after one run at L = 3."""
    page.get_by_label("length", exact=True).fill("3")
    run(page)
    return page


def test_apply(beam):
    assert card_value(beam, "tip") == pytest.approx(TIP, rel=1e-6)
    for result in all_three(beam):
        assert result["tip"] == pytest.approx(TIP)
        assert result["deflection"].shape == (101,)
        assert result["note"] == "steel, 0 tags"


def test_gradient(beam):
    differentiate(beam, "gradient of one number")
    found = all_three(beam)
    beam.get_by_role("tab", name="Derivatives").click()
    assert card_value(beam, re.compile("^length")) == pytest.approx(4 * TIP / LENGTH, rel=1e-4)
    for result in found:
        assert result["length"] == pytest.approx(4 * TIP / LENGTH, rel=1e-4)
        assert result["section.height"] == pytest.approx(-3 * TIP / 0.1, rel=1e-4)
        assert result["loads"] == pytest.approx(np.full(4, TIP / 1150 / 4), rel=1e-4)


def test_direction(beam):
    differentiate(beam, "change along a direction", ["section.width", "section.height", "loads"])
    found = all_three(beam)
    beam.get_by_role("tab", name="Derivatives").click()
    assert card_value(beam, re.compile("^tip")) == pytest.approx(0.04 * TIP, rel=1e-4)
    for result in found:
        assert result["tip"] == pytest.approx(0.04 * TIP, rel=1e-4)


def test_jacobian(beam):
    differentiate(beam, "Jacobian")
    found = all_three(beam)
    beam.get_by_role("tab", name="Derivatives").click()
    assert card_value(beam, "∂ tip / ∂ length") == pytest.approx(4 * TIP / LENGTH, rel=1e-4)
    for result in found:
        assert result["tip"]["length"] == pytest.approx(4 * TIP / LENGTH, rel=1e-4)
        assert set(result["tip"]) == {"length", "loads", "section.height", "section.width"}


def check(page):
    page.get_by_role("tab", name="Gradient check").click()
    page.get_by_label("Evaluations to spend").fill("40")
    page.get_by_role("button", name="Check gradients").click()
    page.locator(".verdict").wait_for()


def test_gradient_check(beam):
    check(beam)
    assert "passed" in beam.locator(".verdict").inner_text()
    codes = offered(beam)
    assert in_python(codes["Python"])["report"].passed
    assert json.loads(in_shell(codes["curl"]))["passed"]
    assert "passed" in in_shell(codes["Command line"])


def test_a_run_is_found_again_as_a_job(beam):
    codes = offered(beam)
    kept = in_python(codes["Python, job"])["job"].result()
    assert kept["tip"] == pytest.approx(TIP)
    assert decoded(json.loads(in_shell(codes["curl, job"])))["tip"] == pytest.approx(TIP)
    in_shell(codes["Command line, job"])
    beam.get_by_label("seconds", exact=True).fill("0.1")
    run(beam)
    assert "working on step 10" in in_shell(offered(beam)["Command line, job"])


def save_files(page, folder):
    for button in page.get_by_role("button", name=re.compile("^save .*json$")).all():
        with page.expect_download() as download:
            button.click()
        download.value.save_as(folder / download.value.suggested_filename)


def test_long_inputs_come_from_files(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loads = 300 * np.sqrt(np.arange(1.0, 37.0))  # with all digits: more than fits on a line
    np.save(tmp_path / "loads.npy", loads)
    page.get_by_label("loads: file").set_input_files(tmp_path / "loads.npy")
    page.get_by_text("f64[36]", exact=True).wait_for()
    run(page)
    offered(page)
    save_files(page, tmp_path)
    for result in all_three(page, tmp_path):
        assert result["tip"] == pytest.approx(TIP * loads.mean() / 1150 * (2.0 / LENGTH) ** 4)
    check(page)
    codes = offered(page)
    save_files(page, tmp_path)
    assert json.loads(in_shell(codes["curl"]))["passed"]
    assert "passed" in in_shell(codes["Command line"])


def test_numbers_that_json_has_not(open_page, url):
    page = open_page(f"{url}/c/zoo_component/")
    page.get_by_label("signal").first.fill("1+2j -3j 0.5")
    page.get_by_label("anything 0, 1").fill("nan")
    page.get_by_label("named: name").fill("it's")
    run(page)
    for result in all_three(page):
        np.testing.assert_array_equal(result["doubled"], [2 + 4j, -6j, 1])
        np.testing.assert_array_equal(result["seen"], [1.0, np.nan])


def test_large_integers_stay_exact(open_page, url):
    page = open_page(f"{url}/c/zoo_component/")
    largest = 2**63 - 1
    assert page.get_by_label("count", exact=True).input_value() == str(2**53 + 1)
    page.get_by_label("count", exact=True).fill(str(largest - 1))
    assert page.get_by_label("identifiers 0").input_value() == str(-(2**62) - 1)
    page.get_by_label("identifiers 1").fill(str(largest))
    run(page)
    card = page.locator("article")
    assert card.filter(has_text="counted").locator(".value").inner_text() == str(largest)
    rows = card.filter(has_text="shifted").locator("tr").all_inner_texts()
    assert [row.split()[-1].replace("−", "-") for row in rows] == [str(-(2**62)), str(-(2**63))]
    for result in all_three(page):
        assert result["counted"] == largest
        assert result["shifted"].tolist() == [-(2**62), -(2**63)]
    page.get_by_label("identifiers 1").fill(str(largest + 1))
    page.get_by_role("button", name="Run").click()
    page.get_by_text("does not fit int64").wait_for()


def test_names_cannot_break_out_of_the_shell(open_page, running, wrong, tmp_path):
    source = tmp_path / "component.yaml"
    source.write_text(
        'name: "a$(touch hacked)\'b"\ncommand: [cat]\ninputs: {x: float}\noutputs: {x: float}\n'
    )
    with running("serve", wrong, source, "--port", "0") as address:
        page = open_page(f"{address}/")
        page.get_by_role("link", name="hacked").click()
        page.get_by_role("heading", name="hacked").wait_for()
        run(page)
        for result in all_three(page, tmp_path):
            assert result == {"x": 1.0}
    assert not (tmp_path / "hacked").exists()


def test_token_is_named_and_never_shown(open_page, guarded, monkeypatch):
    monkeypatch.setenv("CHAINRULE_TOKEN", TOKEN)
    page = open_page(f"{guarded}/")
    page.get_by_label("Token", exact=True).fill(TOKEN)
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Run").wait_for()
    run(page)
    for result in all_three(page):
        assert result["y"].tolist() == [1.0] * 4
    codes = offered(page)
    assert in_python(codes["Python, job"])["job"].result()["y"].tolist() == [1.0] * 4
    in_shell(codes["curl, job"])
    in_shell(codes["Command line, job"])
    assert "CHAINRULE_TOKEN" in page.get_by_role("tabpanel", name="Code").inner_text()
    assert TOKEN not in page.content()
