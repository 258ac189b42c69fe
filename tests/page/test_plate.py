"""A component with a mesh, gradients, files and plots of its own, on its page.

The temperature is a bell: T(x) = p exp(−|x − c|²/(2 w²)). The number that is differentiated is the mean of
(T(sᵢ) − 1)² over the sensors sᵢ.
"""

from __future__ import annotations

import http.client
import json
import re
from contextlib import closing
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

SENSORS = np.array([[0.2, 0.2], [0.5, 0.5], [0.8, 0.3]])


def misfit(power=2.0, centre=(0.4, 0.6), width=0.2):
    far = np.sum((SENSORS - centre) ** 2, axis=1)
    return float(np.mean((power * np.exp(-far / (2 * width**2)) - 1) ** 2))


def card(page, name):
    heading = page.get_by_role("heading", name=name, exact=True)
    return page.locator("article").filter(has=heading)


def number(text):
    return float(re.search(r"[−-]?[\d.]+(e[−-]?\d+)?", text)[0].replace("−", "-"))


def wait_for_run(page, endpoint="apply"):
    page.locator(".message", has_text=re.compile(rf"{endpoint} took|\[")).wait_for()
    assert f"{endpoint} took" in page.locator(".message").inner_text()


def open_tab(page, name):
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel", name=name)


COLOURS = """canvas => {
  const { width, height } = canvas;
  const copy = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  return new Set(new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer)).size;
}"""


def test_results_of_every_kind(look, url):
    page = look(f"{url}/c/plate_component/")
    wait_for_run(page)  # without a click: the component says that it is cheap
    assert number(card(page, "misfit").locator(".value").inner_text()) == pytest.approx(misfit())
    lead = page.locator(".lead")
    assert lead.locator("strong").inner_text() == "square"
    assert lead.locator("li").count() == 2
    assert lead.get_by_role("link").get_attribute("href").startswith("https://en.wikipedia.org/")
    assert "<script>alert(1)</script>" in lead.inner_text()

    mesh = card(page, "mesh mesh.points")
    assert mesh.locator("canvas.mesh").evaluate(COLOURS) > 100
    labels = mesh.get_by_label("mesh.points: field").locator("option").all_inner_texts()
    assert labels == [
        "temperature (on points)",
        "|flux| (on points)",
        "region (on cells)",
        "no field",
    ]
    mesh.get_by_label("mesh.points: field").select_option(label="no field")
    assert mesh.locator("canvas.mesh").evaluate(COLOURS) < 20

    pixel = "c => [...c.getContext('2d').getImageData(3, 2, 1, 1).data]"
    assert card(page, "photograph").locator("canvas.image").evaluate(pixel) == [16, 24, 90, 255]
    assert card(page, "wave").locator("canvas.image").count() == 2  # magnitude and phase
    bar = card(page, "wave").locator(".bar-labels").last.inner_text().split()
    assert bar == ["3.14", "0", "−3.14"]
    card(page, "powers").get_by_role("checkbox").check()
    ticks = card(page, "powers").locator("svg .tick").all_text_contents()
    assert {"1e−5", "1"} <= set(ticks)  # whole powers of ten
    rows = card(page, "table").locator("tr").all_inner_texts()
    assert rows[0].split() == ["name", "reading", "ok"]
    assert len(rows) == 4
    assert "no entries" in card(page, "extra").inner_text()
    assert card(page, "names").locator("li").all_inner_texts() == ["steel", "<b>copper</b>"]
    assert "<b>with</b> markup" in card(page, "story").inner_text()
    frame = page.frame_locator("iframe").locator("img")
    frame.wait_for()
    assert frame.evaluate("image => image.naturalWidth") > 100

    curve = card(page, "powers").locator("svg.plot")
    curve.scroll_into_view_if_needed()
    box = curve.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60, steps=3)
    page.mouse.up()
    card(page, "powers").get_by_role("button", name="show all").click()


def test_edges_of_a_mesh_have_the_colour_of_the_theme_that_is_switched_to(look, url):
    seen = {}
    for scheme in ("light", "dark"):
        page = look(f"{url}/c/plate_component/", 1280, scheme)
        wait_for_run(page)
        page.get_by_label(re.compile(": edges$")).first.check()
        mesh = page.locator("canvas.mesh").first
        other = {"light": "dark", "dark": "light"}[scheme]
        seen[scheme, "system"] = mesh.evaluate("canvas => canvas.toDataURL()")
        page.get_by_role("button", name="switch between light and dark").click()
        seen[other, "switch"] = mesh.evaluate("canvas => canvas.toDataURL()")
    assert seen["light", "system"] == seen["light", "switch"]
    assert seen["dark", "system"] == seen["dark", "switch"]
    assert seen["light", "system"] != seen["dark", "system"]


def test_gradient_on_the_inputs_and_what_it_foretells(look, url):
    page = look(f"{url}/c/plate_component/", 390, "dark")
    wait_for_run(page)
    panel = open_tab(page, "Derivatives")
    panel.get_by_role("button", name="Differentiate").click()
    panel.get_by_role("heading", name="Sensitivities").wait_for()
    slope = (misfit(2 + 1e-6) - misfit(2 - 1e-6)) / 2e-6
    field = page.locator(".field", has=page.get_by_label("power", exact=True))
    assert number(field.locator(".gradient").inner_text().split(":")[1]) == pytest.approx(
        slope, rel=1e-3
    )
    assert page.get_by_label("power", exact=True).get_attribute("data-slope") == "grows"
    assert page.get_by_label("width", exact=True).get_attribute("data-slope") == "falls"
    assert page.locator(".gradient svg path.arrow").count() == 3  # one for each sensor
    slider = page.get_by_role("slider", name="power: slider")
    slider.focus()
    slider.press("ArrowRight")
    moved = float(page.get_by_label("power", exact=True).input_value())
    assert moved > 2
    foretold = page.locator(".prediction").inner_text()
    assert number(foretold.split("≈")[1]) == pytest.approx(misfit() + slope * (moved - 2), rel=1e-3)
    assert "other inputs" not in foretold
    page.get_by_label("cells", exact=True).fill("6")
    assert "other inputs changed as well" in page.locator(".prediction").inner_text()
    page.get_by_role("button", name="Run").click()
    page.locator(".gradient").first.wait_for(state="detached")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_optimise_check_and_link(look, url):
    page = look(f"{url}/c/plate_component/")
    wait_for_run(page)
    panel = open_tab(page, "Optimise")
    for path in ("centre", "sensors", "width"):
        panel.get_by_role("checkbox", name=path).uncheck()
    assert "≥ 0.1, ≤ 10" in panel.get_by_role("group", name="by moving").inner_text()
    panel.get_by_role("button", name="Optimise").click()
    use = panel.get_by_role("button", name="Use these inputs")
    use.wait_for()
    assert "Converged: the gradient is zero" in panel.locator(".verdict").inner_text()
    use.click()
    panel.get_by_role("img", name="curve of misfit").wait_for(state="hidden")
    bell = np.exp(-np.sum((SENSORS - (0.4, 0.6)) ** 2, axis=1) / 0.08)
    best = bell.sum() / np.sum(bell**2)  # least squares of p · bell = 1
    found = page.get_by_label("power", exact=True)
    assert float(found.input_value()) == pytest.approx(best, rel=1e-4)

    panel = open_tab(page, "Gradient check")
    panel.get_by_role("button", name="Check gradients").click()
    panel.locator(".verdict").wait_for()
    assert panel.get_by_role(
        "img", name="found against expected, jacobian", exact=True
    ).is_visible()
    assert panel.get_by_role(
        "img", name="remainder over the step, jacobian", exact=True
    ).is_visible()

    value = found.input_value()
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_url("**#inputs=*")
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("button", name="Run").wait_for()
    assert other.get_by_label("power", exact=True).input_value() == value
    assert other.locator(".message").inner_text() == ""  # inputs of others do not run by themselves
    other.get_by_role("button", name="Reset", exact=True).click()
    assert other.get_by_label("power", exact=True).input_value() == "2"
    other.goto(page.url)
    other.reload()
    other.get_by_label("power", exact=True).fill("7")
    other.reload()
    other.get_by_role("button", name="Run").wait_for()
    assert other.get_by_label("power", exact=True).input_value() == "7"


def test_an_optimisation_over_decades_has_a_logarithmic_axis(look, url):
    page = look(f"{url}/c/plate_component/")
    wait_for_run(page)
    panel = open_tab(page, "Optimise")
    panel.get_by_role("button", name="Optimise").click()
    panel.get_by_role("button", name="Use these inputs").wait_for()
    found = panel.get_by_role("img", name="curve of misfit")
    assert not {"1e−5", "1e−10"} & set(found.locator(".tick").all_text_contents())
    panel.get_by_role("checkbox", name="values: logarithmic").check()
    assert {"1e−5", "1e−10"} & set(found.locator(".tick").all_text_contents())


def test_files_and_scripts_of_the_author(open_page, url, folders, tmp_path):
    page = open_page("about:blank")
    refused = []
    page.on(
        "request", lambda request: refused.append(request.url) if "status" in request.url else 0
    )
    page.goto(f"{url}/c/plate_component/")
    wait_for_run(page)
    with page.expect_download() as download:
        card(page, "report").get_by_role("button", name="download report.txt").click()
    assert "mean reading" in download.value.path().read_text()
    (tmp_path / "a table.csv").write_text("1,2\n")
    field = page.locator(".field", has_text="table").filter(has_text="give a value").last
    field.get_by_text("give a value").click()
    page.get_by_label("table: file to upload").set_input_files(tmp_path / "a table.csv")
    path = page.get_by_role("textbox", name="table")
    page.wait_for_function("input => input.value", arg=path.element_handle())
    assert (folders[1] / path.input_value()).read_text() == "1,2\n"
    (tmp_path / "large.bin").write_bytes(bytes(2000))
    page.get_by_label("table: file to upload").set_input_files(tmp_path / "large.bin")
    page.locator(".error", has_text="it has 2000 bytes; the server takes 1000").wait_for()


def test_plots_reach_nothing(browser, url):
    """A script in a plot of the author sees no page, no storage and no network."""
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(f"{url}/c/plate_component/")
    wait_for_run(page)
    page.get_by_label("cells", exact=True).fill("5")
    page.get_by_role("button", name="Run").click()
    said = page.frame_locator("iframe[title$=spy]").locator("#said")
    said.get_by_text("no page, no storage, no network").wait_for()
    assert said.evaluate("shown => getComputedStyle(shown).color") == "rgb(255, 255, 255)"
    picture = page.locator("iframe[title$=sensors]")
    page.wait_for_function("frame => frame.style.height", arg=picture.element_handle())
    shown = page.frame_locator("iframe[title$=sensors]").locator("img").bounding_box()
    frame = picture.bounding_box()
    assert all(0 <= frame[side] - shown[side] <= 20 for side in ("width", "height"))
    context.close()


def ask(url, method, path, body=None, *, is_file=True):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    with closing(connection):
        headers = {"Content-Type": "application/octet-stream"} if is_file else {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response, response.read()


@pytest.mark.parametrize(
    ("name", "kept"),
    [("../../etc/passwd", "passwd"), ("C:\\x\\mesh 1.vtu", "mesh_1.vtu"), (".hidden", "hidden")],
)
def test_names_of_uploads_are_safe(url, folders, name, kept):
    response, body = ask(url, "POST", f"/files?name={quote(name)}", b"x")
    assert response.status == 201
    path = json.loads(body)["path"]
    assert re.fullmatch(rf"uploads/[0-9a-f]{{8}}-{re.escape(kept)}", path)
    assert (folders[1] / path).read_bytes() == b"x"


def test_files_have_limits(url, guarded):
    response, body = ask(url, "POST", "/files?name=a", bytes(1001))
    assert (response.status, json.loads(body)["code"]) == (413, "body_too_large")
    for _ in range(4):
        response, body = ask(url, "POST", "/files?name=a", bytes(400))
    assert (response.status, json.loads(body)["code"]) == (413, "body_too_large")
    # Any site may send a form to a server on loopback; only a file that says so is one.
    response, body = ask(url, "POST", "/files?name=a", b"x", is_file=False)
    assert (response.status, json.loads(body)["code"]) == (415, "unsupported_media_type")
    response, body = ask(url, "POST", "/files?name=...", b"x")
    assert (response.status, json.loads(body)["code"]) == (422, "bad_query")
    for path in ("../in/x", "/etc/passwd", "", "missing.txt"):
        assert ask(url, "GET", f"/files?path={quote(path)}")[0].status in (403, 404, 422)
    assert ask(guarded, "POST", "/files?name=a", b"x")[0].status == 401
