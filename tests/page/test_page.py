"""The page of a component, in a real browser. Expectations are the closed form of a cantilever:

tip = q L⁴ / (8 E I) with I = w h³ / 12, for the mean q of the loads.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from urllib.parse import urlsplit

import numpy as np
import pytest

TOKEN = "correct-horse-battery-staple"


def tip(load=1150.0, length=2.0, width=0.05, height=0.1, modulus=2.1e11):
    return load * length**4 / (8 * modulus * width * height**3 / 12)


def card(page, name):
    heading = page.get_by_role("heading", name=name, exact=True)
    return page.locator("article").filter(has=heading)


def number(text):
    return float(re.search(r"[−-]?[\d.]+(e[−-]?\d+)?", text)[0].replace("−", "-"))


def shown(page, name="tip"):
    return number(card(page, name).locator(".value").inner_text())


def run(page):
    page.get_by_role("button", name="Run").click()
    page.locator(".message", has_text=re.compile(r"took|\[|corrected")).wait_for()


def test_one_module_and_nothing_from_elsewhere(open_page, url):
    asked = []
    page = open_page("about:blank")
    page.on("request", lambda request: asked.append((request.resource_type, request.url)))
    page.goto(f"{url}/")
    run(page)
    assert [address for kind, address in asked if kind == "script"] == [f"{url}/_page/page.js"]
    assert all(address.startswith(f"{url}/") for _, address in asked)
    names = page.evaluate("[...document.scripts].map(script => script.type)")
    assert names == ["module"]


def test_form_says_what_the_schema_says(page):
    field = page.locator(".field", has=page.get_by_label("length", exact=True))
    assert field.locator(".unit").inner_text() == "m"
    assert "Free length" in field.inner_text()
    assert page.get_by_label("length", exact=True).input_value() == "2"
    assert page.get_by_label("height", exact=True).input_value() == "0.1"
    assert page.get_by_label("loads 2").input_value() == "1500"
    assert page.get_by_label("rotation 1, 1").input_value() == "1"
    assert page.get_by_label("clamped", exact=True).is_checked()
    assert "≥ 2, ≤ 2001" in page.locator(".form").inner_text()
    assert not page.get_by_text("fixed").is_visible()


def test_results_by_rank(page):
    run(page)
    assert shown(page) == pytest.approx(tip(), rel=1e-6)
    assert card(page, "note").locator(".value").inner_text() == "steel, 0 tags"
    curve = card(page, "deflection").locator("svg")
    assert curve.get_attribute("aria-label") == "curve of deflection"
    curve.hover(position={"x": curve.bounding_box()["width"] - 12, "y": 20})
    assert number(card(page, "deflection").locator(".readout").inner_text().split("=")[1]) > 0
    size = card(page, "stress").locator("canvas.image").evaluate("c => [c.height, c.width]")
    assert size == [24, 101]
    assert " mean 0 " in card(page, "stress").inner_text()  # tension above, pressure below
    slices = card(page, "modes")
    slices.get_by_role("slider").fill("2")
    assert slices.locator("canvas.image").get_attribute("aria-label") == "image of modes[2]"


def test_every_kind_of_field_reaches_the_component(page):
    page.get_by_label("length", exact=True).fill("1")
    page.get_by_label("height", exact=True).fill("0.2")
    page.get_by_label("material").first.select_option(label="Custom")
    page.get_by_label("modulus").fill("7e10")
    page.get_by_role("button", name="loads: one value more").click()
    page.get_by_label("loads 4").fill("400")
    page.get_by_role("button", name="tags: add").click()
    page.get_by_role("textbox", name="tags").fill("first")
    page.get_by_role("button", name="gains: add").click()
    page.get_by_label("gains: name").fill("safety")
    page.get_by_label("gains", exact=True).fill("1.5")
    page.get_by_text("give a value").click()
    page.get_by_role("textbox", name="damping").fill("0.01")
    run(page)
    load = 1.5 * (1000 + 1200 + 1500 + 900 + 400) / 5
    expected = tip(load=load, length=1.0, height=0.2, modulus=7e10)
    assert shown(page) == pytest.approx(expected, rel=1e-6)
    assert card(page, "note").locator(".value").inner_text() == "custom, 1 tags"


def test_arrays_from_files_and_text(page, tmp_path):
    np.save(tmp_path / "loads.npy", np.full(5000, 300.0))
    page.get_by_label("loads: file").set_input_files(tmp_path / "loads.npy")
    page.get_by_text("f64[5000]", exact=True).wait_for()
    run(page)
    assert shown(page) == pytest.approx(tip(load=300.0), rel=1e-6)
    page.get_by_role("textbox", name="loads").fill("100 200\t300, 400")
    run(page)
    assert shown(page) == pytest.approx(tip(load=250.0), rel=1e-6)


def test_arrays_that_are_filled_and_resized(page):
    loads = page.locator(".field", has=page.get_by_role("group", name="loads"))
    loads.get_by_role("button", name="fill…").click()
    loads.get_by_label("shape").fill("8")
    loads.get_by_label("pattern").select_option(label="from … to")
    loads.get_by_label("from or value").fill("100")
    loads.get_by_label("to", exact=True).fill("800")
    loads.get_by_role("button", name="Fill", exact=True).click()
    assert page.get_by_label("loads 7").input_value() == "800"
    page.get_by_role("button", name="loads: one value less").click()
    run(page)
    assert shown(page) == pytest.approx(tip(load=400.0), rel=1e-6)
    page.get_by_label("loads 0").fill("much")
    page.get_by_role("button", name="loads: one value more").click()
    assert "much is not a number" in loads.inner_text()


def test_gradient_and_sensitivities(page):
    page.get_by_role("tab", name="Derivatives").click()
    page.get_by_role("button", name="Differentiate").click()
    card(page, "Sensitivities").wait_for()
    assert shown(page, "length") == pytest.approx(4 * tip() / 2.0, rel=1e-4)
    assert shown(page, "section.height") == pytest.approx(-3 * tip() / 0.1, rel=1e-4)
    assert card(page, "loads").locator(".unit").first.inner_text() == "m²/N"
    assert card(page, "section.height").locator(".unit").first.inner_text() == "1"
    assert card(page, "Sensitivities").locator(".unit").inner_text() == "m"
    rows = card(page, "Sensitivities").locator("tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == [
        "length",
        "section.height",
        "section.width",
        "loads",
    ]
    assert number(rows[0].split()[1]) == pytest.approx(0.01 * 4 * tip(), rel=1e-3)


def test_direction_and_jacobian(page):
    page.get_by_role("tab", name="Derivatives").click()
    page.get_by_label("Ask for").select_option(label="change along a direction")
    run(page)
    page.get_by_role("tab", name="Derivatives").click()
    for path in ("length", "section.width", "section.height"):
        page.get_by_role("checkbox", name=path).uncheck()
    page.get_by_role("button", name="Differentiate").click()
    panel = page.get_by_role("tabpanel", name="Derivatives")
    value = panel.locator("article").filter(has_text="tip").locator(".value")
    assert number(value.inner_text()) == pytest.approx(0.01 * tip(), rel=1e-4)
    page.get_by_label("Ask for").select_option(label="Jacobian")
    page.get_by_role("button", name="Differentiate").click()
    block = panel.locator("article").filter(has_text="∂ tip / ∂ length")
    assert number(block.locator(".value").inner_text()) == pytest.approx(2 * tip(), rel=1e-4)


def test_gradient_check(page, open_page, url):
    page.get_by_role("tab", name="Gradient check").click()
    page.get_by_role("button", name="Check gradients").click()
    assert "passed" in page.locator(".verdict").inner_text()
    other = open_page(f"{url}/c/wrong/")
    other.get_by_role("tab", name="Gradient check").click()
    other.get_by_role("button", name="Check gradients").click()
    assert "failed" in other.locator(".verdict").inner_text()
    # At x = 1 the derivative of x³ is 3, and the component says 6.
    assert "6, expected 3" in other.locator(".mismatches").first.inner_text()


def test_progress_log_and_cancel(page):
    page.get_by_label("seconds", exact=True).fill("60")
    page.get_by_role("button", name="Run").click()
    page.locator(".message", has_text="step 1 of 10").wait_for()
    page.locator(".log", has_text="working on step 1").wait_for()
    assert page.get_by_role("progressbar").is_visible()
    page.get_by_role("tab", name="Jobs").click()
    page.locator(".state.running").first.wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.locator(".message", has_text="cancelled").wait_for()
    page.locator(".state.cancelled").first.wait_for()
    page.get_by_role("button", name=re.compile("^log of")).first.click()
    page.get_by_label("log", exact=True).filter(has_text="working on step 1").wait_for()


def test_waiting_is_shown(page, open_page, url):
    """One worker, two callers: the second sees that it waits, and both can be called off."""
    page.get_by_label("seconds", exact=True).fill("60")
    page.get_by_role("button", name="Run").click()
    page.locator(".message", has_text="step 1 of 10").wait_for()
    other = open_page(f"{url}/")
    other.get_by_role("button", name="Run").click()
    other.locator(".message", has_text="before it").wait_for()
    other.get_by_role("tab", name="Jobs").click()
    other.locator(".state.queued").first.wait_for()
    other.get_by_text("waiting: jobs 1").wait_for()
    for each in (other, page):
        each.get_by_role("button", name="Cancel", exact=True).click()
        each.locator(".message", has_text="cancelled").wait_for()


def test_errors_are_shown_at_their_fields(page):
    page.get_by_label("stations", exact=True).fill("1")
    page.get_by_label("material").first.select_option(label="Custom")
    page.get_by_label("modulus").fill("-1")
    run(page)
    stations = page.locator(".field", has=page.get_by_label("stations", exact=True))
    assert "greater than or equal to 2" in stations.locator(".error").inner_text()
    modulus = page.locator(".field.compact", has=page.get_by_label("modulus"))
    assert "greater than 0" in modulus.locator(".error").inner_text()
    page.get_by_label("stations", exact=True).fill("many")
    page.get_by_role("button", name="Run").click()
    page.locator(".message", has_text="have to be corrected").wait_for()
    assert "not a number" in stations.locator(".error").inner_text()
    assert "greater than 0" in modulus.locator(".error").inner_text()


def test_rare_fields_and_arrays(open_page, url):
    page = open_page(f"{url}/c/zoo_component/")
    page.get_by_label("signal").first.fill("1+2j -3j 0.5")
    page.get_by_label("colour").select_option(label="blue")
    page.get_by_role("button", name="points: add").click()
    run(page)
    assert "took" in page.locator(".message").inner_text()
    assert card(page, "said").locator(".value").inner_text() == "blue 3 (1, 'b') (4, 4, 4)"
    assert shown(page, "total") == 6.0
    card(page, "doubled").get_by_label("part shown").select_option(label="imaginary")
    rows = card(page, "doubled").locator("tr").all_inner_texts()
    assert [number(row.split()[-1]) for row in rows] == [4.0, -6.0, 0.0]
    assert "max 4.75" in card(page, "half").locator(".summary").inner_text()
    assert "max 19" in card(page, "brain").locator(".summary").inner_text()
    assert "20 not finite" in card(page, "gaps").inner_text()
    card(page, "hyper").get_by_label("position on axis 0").fill("1")
    card(page, "hyper").locator("canvas.image").hover(position={"x": 2, "y": 2})
    assert card(page, "hyper").locator(".readout").inner_text() == "hyper[1, 0][0, 0] = 60"
    assert "<i>rarely</i>" in page.locator(".lead").inner_text()
    page.get_by_role("tab", name="Derivatives").click()
    page.get_by_role("button", name="Differentiate").click()
    assert shown(page, "points.[1].x") == 3.0


def test_failures_of_the_component_are_told(open_page, url):
    page = open_page(f"{url}/c/wrong/")
    page.get_by_role("button", name="as text").click()
    page.get_by_role("textbox", name="x").fill("[]")
    run(page)
    assert "there is nothing to cube" in page.locator(".message.bad").inner_text()
    assert "[component_failed]" in page.locator(".message.bad").inner_text()


def test_copying(page):
    run(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("tab", name="Code").click()
    code = page.get_by_label("Python", exact=True).inner_text()
    page.get_by_role("button", name="copy Python", exact=True).click()
    page.get_by_text("copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == code


def test_several_components(page):
    page.get_by_role("link", name="wrong").click()
    page.get_by_role("heading", name="wrong").wait_for()
    run(page)
    assert page.url.endswith("/c/wrong/")
    assert card(page, "y").is_visible()


def test_token(open_page, guarded):
    page = open_page(f"{guarded}/")
    page.get_by_label("Token", exact=True).fill("not-this-one-for-sure")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("does not know this token").wait_for()
    page.get_by_label("Token", exact=True).fill(TOKEN)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Continue").click()
    run(page)
    assert card(page, "y").is_visible()
    assert not any(TOKEN in address for address in asked)
    assert TOKEN not in page.content()
    page.reload()
    page.get_by_role("button", name="Run").wait_for()


def test_keyboard_and_names(page):
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea, button')].filter("
        "e => !e.labels?.length && !e.ariaLabel && !e.textContent.trim()).map(e => e.outerHTML)"
    )
    assert unnamed == []
    page.get_by_role("tab", name="Result").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Derivatives").get_attribute("aria-selected") == "true"
    for key, name in (
        ("End", "Code"),
        ("ArrowRight", "Result"),
        ("ArrowLeft", "Code"),
        ("Home", "Result"),
    ):
        page.keyboard.press(key)
        assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
    page.get_by_label("length", exact=True).focus()
    page.keyboard.press("Enter")
    page.locator(".message", has_text="took").wait_for()


def test_light_and_dark(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="switch between light and dark").click()
    assert page.evaluate(ground) != light
    run(page)


def get(url, path, accept):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        return response, response.read()


def test_machines_get_what_they_always_got(url):
    response, body = get(url, "/", "*/*")
    assert (response.status, json.loads(body)["code"]) == (404, "not_found")


@pytest.mark.parametrize("name", ["beam_component", "https:elsewhere.example"])
def test_redirects_stay_here(url, name):
    response, _ = get(url, f"/c/{name}", "text/html")
    assert response.status == 307
    assert response.headers["Location"] == f"./{name}/"


@pytest.mark.parametrize("path", ["/", "/c/beam_component/", "/_page/page.js", "/docs"])
def test_headers(url, path):
    response, body = get(url, path, "text/html")
    assert response.status == 200
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert b"https://" not in body.replace(b"https://www.w3.org", b"")


def test_description_says_what_the_schema_says(url):
    text = get(url, "/docs", "text/html")[1].decode()
    for words in ("f64[cell] N/m", "section.height", "Height of the section", "derived (jacobian)"):
        assert words in text
    assert "&lt;i&gt;rarely&lt;/i&gt;" in get(url, "/c/zoo_component/docs", "text/html")[1].decode()
    plate = get(url, "/c/plate_component/docs", "text/html")[1].decode()
    assert "<strong>square</strong>" in plate
    assert "<li><code>power</code> is how strong it is.</li>" in plate
    assert "<script" not in plate


@pytest.mark.parametrize("path", ["/_page/../_page.py", "/_page/dom.js", "/_page/%2e%2e%2f_app.py"])
def test_only_the_files_of_the_page(url, path):
    assert get(url, path, "*/*")[0].status == 404


def post(url, path, content):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    with contextlib.closing(connection):
        body = json.dumps(content)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_gradient_check_over_http(url):
    status, report = post(url, "/c/wrong/check_gradients", {"inputs": {"x": [1.0, 2.0]}})
    assert status == 200
    assert not report["passed"]
    status, report = post(url, "/check_gradients", {"inputs": {}, "output_paths": ["tip"]})
    assert status == 200
    assert report["passed"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_evals", 100_000), ("max_output_samples", 10_000), ("rtol", 2.0), ("spend", 1)],
)
def test_gradient_check_has_bounds(url, option, value):
    status, problem = post(url, "/check_gradients", {"inputs": {}, option: value})
    assert (status, problem["code"]) == (422, "invalid_input")
    assert problem["detail"][0]["loc"] == ["body", option]


@pytest.mark.parametrize(
    "component", ["beam_component", "wrong", "zoo_component", "defaults_component"]
)
def test_small_screens(open_page, url, component):
    """Nothing sticks out at the side, and results come into sight."""
    from playwright.sync_api import expect

    page = open_page("about:blank")
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{url}/c/{component}/")
    run(page)
    expect(page.get_by_role("tab", name="Result")).to_be_in_viewport()
    for tab in ("Derivatives", "Gradient check", "Jobs", "Code", "Result"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_errors_are_told_to_screen_readers(page):
    length = page.get_by_label("length", exact=True)
    length.fill("x")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("x is not a number").wait_for()
    assert length.get_attribute("aria-invalid") == "true"
    assert (
        page.locator(f"#{length.get_attribute('aria-errormessage')}").get_attribute("role")
        == "alert"
    )
    assert length.evaluate("e => e === document.activeElement")
    length.fill("2")
    run(page)
    assert length.get_attribute("aria-invalid") is None


# axe looks for violations of WCAG (contrast, names, order of headings, …) in each state, here and at the end.


def test_states_of_a_run_can_be_read_by_everybody(look, url):
    page = look(f"{url}/c/defaults_component/")
    run(page)
    page.get_by_role("button", name="numbers", exact=True).first.click()
    page.get_by_role("tab", name="Derivatives").click()
    page.get_by_role("button", name="Differentiate").click()
    page.locator(".gradient").first.wait_for()
    look.examine(page, "derivatives")
    page.get_by_role("tab", name="Result").click()
    page.get_by_label("offset", exact=True).fill("11")
    run(page)


def test_other_states_can_be_read_by_everybody(look, url):
    page = look(f"{url}/c/zoo_component/", 390, "dark")
    run(page)
    look.examine(page, "rare")
    page.get_by_role("tab", name="Jobs").click()
    page.locator(".state.succeeded").first.wait_for()
    look.examine(page, "jobs")
    page.goto(f"{url}/docs")


@pytest.fixture
def defaults(open_page, url):
    """The page of a component whose defaults are made by functions."""
    page = open_page(f"{url}/c/defaults_component/")
    page.get_by_role("button", name="Run").wait_for()
    return page


def test_defaults_of_the_author_are_left_to_him(defaults):
    """(2 + 3) · 1.5 · 1.2 = 9, which is what `chainrule apply` gives without inputs."""
    assert defaults.get_by_text("author's default", exact=True).count() == 3
    for name, tags in (("x", ["kg", "∂"]), ("optional", ["m"])):
        head = defaults.locator(".field-head", has=defaults.get_by_text(name, exact=True))
        assert head.locator(".unit, .tag").all_inner_texts() == tags
    run(defaults)
    assert shown(defaults, "y") == pytest.approx(9.0)
    defaults.get_by_role("tab", name="Derivatives").click()
    defaults.get_by_role("button", name="Differentiate").click()
    panel = defaults.get_by_role("tabpanel", name="Derivatives")
    panel.get_by_role("heading", name="x", exact=True).wait_for()
    rows = card(defaults, "x").locator("tr").all_inner_texts()
    assert [number(row.split()[-1]) for row in rows] == pytest.approx([1.8, 1.8])
    defaults.locator(".field", has=defaults.get_by_label("x", exact=True)).get_by_text(
        "give a value"
    ).first.click()
    note = defaults.get_by_text("an example, not the author's default").locator("visible=true")
    assert note.count() == 1
    defaults.get_by_label("x 0").fill("10")
    assert note.count() == 0
    for i in (1, 2, 3):
        defaults.get_by_label(f"x {i}").fill("0")
    run(defaults)
    assert shown(defaults, "y") == pytest.approx(18.0)

    defaults.get_by_role("button", name="Reset", exact=True).click()
    run(defaults)
    defaults.get_by_role("tab", name="Optimise").click()
    defaults.get_by_role("tabpanel", name="Optimise").get_by_text("x author's default").wait_for()
    defaults.get_by_role("textbox", name="Evaluations at most").fill("3")
    defaults.get_by_role("button", name="Optimise").click()
    defaults.get_by_role("button", name="Use these inputs").click()
    values = [float(defaults.get_by_label(f"x {i}").input_value()) for i in (0, 1)]
    assert values[0] < 2
    assert values[1] - values[0] == pytest.approx(1)  # from (2, 3) along the gradient


def test_arrays_larger_than_a_canvas(defaults):
    defaults.get_by_label("rows", exact=True).fill("70000")
    run(defaults)
    tall = card(defaults, "tall").locator("canvas.image")
    height, top, bottom = tall.evaluate(
        "c => [c.height, ...[0, c.height - 1].map(y => [...c.getContext('2d')"
        ".getImageData(0, y, 1, 1).data].join())]"
    )
    assert height <= 1024
    assert top != bottom  # the first column grows from 0 to 69 999
    assert "mean of 69 × 1 values" in card(defaults, "tall").inner_text()
    path = card(defaults, "long").locator("path.curve").get_attribute("d")
    assert len(path) < 60_000


def test_limits_have_the_digits_that_tell_them_apart(defaults):
    run(defaults)
    labels = card(defaults, "warm").locator(".bar-labels span").all_inner_texts()
    assert labels == ["300.2", "300.1", "300"]
    nearly = card(defaults, "nearly")
    limits = nearly.locator(".bar-labels").inner_text()
    nearly.get_by_role("slider").fill("2")
    assert nearly.locator(".bar-labels").inner_text() == limits
    assert limits.split() == ["11", "5.5", "0"]


def test_small_arrays_of_colours_are_pictures(defaults):
    run(defaults)
    canvas = card(defaults, "colours").locator("canvas.image")
    assert canvas.get_attribute("aria-label") == "picture of colours"
    pixel = "c => [...c.getContext('2d').getImageData(3, 0, 1, 1).data]"
    assert canvas.evaluate(pixel) == [255, 0, 51, 255]
    card(defaults, "colours").get_by_label("part shown").select_option(label="channels")
    assert canvas.get_attribute("aria-label") == "image of colours[0]"


OPAQUE = """canvas => {
  const { width, height } = canvas;
  const copy = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  return data.filter((value, i) => i % 4 === 3 && value > 127).length;
}"""


def test_quads_in_space_are_two_triangles(defaults):
    """The dart has half the area of the triangle around it, which a tetrahedron of its corners fills."""
    run(defaults)
    canvas = card(defaults, "mesh vertices").locator("canvas.mesh")
    dart = canvas.evaluate(OPAQUE)
    box = canvas.evaluate("canvas => canvas.width * canvas.height")
    assert 0.03 * box < dart < 0.07 * box


def test_every_wrong_value_is_marked_at_once(defaults):
    defaults.get_by_label("offset", exact=True).fill("11")
    defaults.get_by_label("rows", exact=True).fill("many")
    defaults.get_by_label("other", exact=True).fill("-1")
    run(defaults)
    errors = [text for text in defaults.locator(".error").all_inner_texts() if text]
    assert [error.split(";")[0] for error in errors] == [
        "Input should be less than or equal to 10",
        "Input should be greater than or equal to 0",
        "many is not a number.",
    ]


def test_files_that_cannot_be_read_are_refused_in_red(page, tmp_path):
    (tmp_path / "loads.csv").write_text("1, 2\n3, word")
    page.get_by_label("loads: file").set_input_files(tmp_path / "loads.csv")
    page.locator(".bad", has_text="loads.csv: word is not a number.").wait_for()


def test_rows_of_models_do_not_overlap(defaults):
    for width in (1280, 390):
        defaults.set_viewport_size({"width": width, "height": 900})
        form = defaults.locator(".form").bounding_box()
        for row in defaults.locator(".several-row > *").all():
            box = row.bounding_box()
            assert box["x"] + box["width"] <= form["x"] + form["width"] + 1
    field = defaults.locator(".field", has_text="optional").filter(has_text="give a value").last
    field.get_by_text("give a value").click()
    assert defaults.get_by_role("textbox", name="optional").is_visible()
