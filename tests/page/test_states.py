"""Every state of the pages of a server, examined: axe, errors, requests elsewhere, the width."""

from __future__ import annotations

import re

import pytest

TOKEN = "correct-horse-battery-staple"
LOOKS = [(1280, "dark"), (390, "light")]  # the other two are in the tests of what the pages do


def open_tab(page, name):
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel", name=name)


def wait_for(page, words):
    page.locator(".message", has_text=re.compile(words)).wait_for()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_states_of_a_component(look, url, width, scheme):
    page = look(f"{url}/c/plate_component/", width, scheme)
    wait_for(page, "apply took")
    look.examine(page, f"{width}-result")
    page.locator("article", has_text="wave").get_by_role("button", name="enlarge").first.click()
    page.get_by_role("button", name="fill…").first.click()
    look.examine(page, f"{width}-enlarged")
    panel = open_tab(page, "Derivatives")
    panel.get_by_role("button", name="Differentiate").click()
    panel.get_by_role("heading", name="Sensitivities").wait_for()
    slider = page.get_by_role("slider", name="power: slider")
    slider.focus()
    slider.press("ArrowRight")
    page.locator(".prediction").wait_for()
    look.examine(page, f"{width}-gradient")
    panel.get_by_label("Ask for").select_option(label="Jacobian")
    panel.get_by_role("button", name="Differentiate").click()
    panel.locator("article", has_text="∂ misfit / ∂ power").first.wait_for()
    look.examine(page, f"{width}-jacobian")
    panel = open_tab(page, "Optimise")
    panel.get_by_role("textbox", name="Evaluations at most").fill("5")
    panel.get_by_role("button", name="Optimise").click()
    panel.get_by_role("button", name="Use these inputs").wait_for()
    look.examine(page, f"{width}-optimised")
    panel = open_tab(page, "Gradient check")
    panel.get_by_role("button", name="Check gradients").click()
    panel.locator(".verdict").wait_for()
    look.examine(page, f"{width}-check")
    open_tab(page, "Jobs").locator(".state").first.wait_for()
    look.examine(page, f"{width}-jobs")
    open_tab(page, "Code")
    look.examine(page, f"{width}-code")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_states_of_a_component_that_fails(look, url, width, scheme):
    page = look(f"{url}/c/wrong/", width, scheme, status=500)
    panel = open_tab(page, "Gradient check")
    panel.get_by_role("button", name="Check gradients").click()
    panel.locator(".verdict").wait_for()
    look.examine(page, f"{width}-failed-check")
    page.get_by_role("button", name="as text").click()
    page.get_by_role("textbox", name="x").fill("[]")
    page.get_by_role("button", name="Run").click()
    wait_for(page, r"\[component_failed\]")
    look.examine(page, f"{width}-failed-run")
    page.goto(f"{url}/c/wrong/docs")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_states_of_a_run(look, url, width, scheme):
    page = look(f"{url}/", width, scheme)
    page.get_by_label("length", exact=True).fill("x")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("x is not a number").wait_for()
    look.examine(page, f"{width}-refused")
    page.get_by_label("length", exact=True).fill("2")
    page.get_by_label("seconds", exact=True).fill("60")
    page.get_by_role("button", name="Run").click()
    page.locator(".log", has_text="working on step 1").wait_for()
    look.examine(page, f"{width}-running")
    page.get_by_role("button", name="Cancel").click()
    wait_for(page, r"\[cancelled\]")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_states_of_a_server_with_a_token(look, guarded, width, scheme):
    page = look(f"{guarded}/docs", width, scheme, status=401)
    page.goto(f"{guarded}/")
    page.get_by_role("dialog").wait_for()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_dashboard(look, running, url, width, scheme):
    with running("dashboard", url, "http://127.0.0.1:9", "--port", "0") as address:
        page = look(f"{address}/", width, scheme)
        page.get_by_text("1 of 2 answer").wait_for()
        look.examine(page, f"{width}-{scheme}")
        page.goto("about:blank")
        page.close()
