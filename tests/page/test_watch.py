"""The page of a run, live and saved, in a browser; nothing is loaded from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import chainrule


def record(w, steps):
    x = np.linspace(-1, 1, 40)
    for k in steps:
        field = np.exp(-((x[:, None] - 0.02 * k) ** 2) - x**2)
        field[0, 0] = np.nan
        w(
            k,
            cost=np.nan if k == 7 else 100 * 0.8**k,
            gradients={"layout": [1 / (k + 1)], "heat": 0.5},
            inputs={"angle": 0.1 * k, "profile": np.sin(x * k)},
            fields={"board": field},
        )


def is_within(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_saved_run_is_stepped_through(look, tmp_path, width, scheme):
    w = chainrule.watch("A board")
    record(w, range(20))
    page = look(w.save(tmp_path / "run.html").as_uri(), width, scheme)
    assert is_within(page)
    assert page.locator("h1").inner_text() == "A board"
    page.get_by_text("The cost is NaN at step 7, the first value that is not finite.").wait_for()
    assert "1 not finite" in page.get_by_label("fields at this step").inner_text()
    slider = page.get_by_role("slider", name="step")
    assert slider.get_attribute("aria-valuetext") == "step 19"
    slider.press("Home")
    lead = page.locator(".lead")
    assert "step 0 of 19 · cost 100" in lead.inner_text()
    for _ in range(7):
        slider.press("ArrowRight")
    assert "cost NaN" in lead.inner_text()
    cost = page.get_by_role("img", name="cost over the steps")
    box = cost.bounding_box()
    cost.click(position={"x": box["width"] * 0.97, "y": box["height"] / 2})
    assert "step 19" in lead.inner_text()
    page.get_by_role("button", name="play").click()
    page.get_by_role("button", name="pause").click()
    assert "step 19" not in lead.inner_text()
    page.get_by_label("log cost").check()
    page.get_by_label("same colours").uncheck()


def test_a_live_page_follows_the_run_and_outlives_it(look):
    with chainrule.watch("Live", max_frames=8) as w:
        record(w, range(3))
        page = look(w.url + "/")
        lead = page.locator(".lead")
        page.get_by_text("step 2 of 2").wait_for()
        slider = page.get_by_role("slider", name="step")
        slider.press("Home")
        record(w, range(3, 12))
        page.get_by_text("step 0 of 11").wait_for()
        assert "of 12 steps are kept" in lead.inner_text()
        slider.press("End")
        record(w, [12])
        page.get_by_text("step 12 of 12").wait_for()
    page.get_by_text("finished").wait_for()
    slider.press("Home")
    assert "step 0" in lead.inner_text()


def test_curves_of_different_sizes_have_axes_of_their_own(look, tmp_path):
    w = chainrule.watch("Sizes")
    for k in range(20):
        norms = {"late": 0.0 if k < 3 else 1000 * 0.8**k, "small": 0.5 * 0.9**k, "none": 0.0}
        w(k, cost=-1.0 / (k + 1), gradients=norms, inputs=np.array([2e11 - 1e9 * k, 0.3, 0.5]))
    page = look(w.save(tmp_path / "run.html").as_uri())
    titles = page.get_by_label("inputs").locator("h2").all_inner_texts()
    assert titles == ["inputs[0]", "inputs[1], inputs[2]"]
    norms = page.get_by_role("img", name="norms of gradients over the steps")
    assert (
        "100" in norms.locator(".tick").all_text_contents()
    )  # powers of ten, although norms are 0
    assert norms.locator("path.series-1").bounding_box()["height"] > 10
    legend = page.locator("figure", has=norms).locator(".legend").inner_text()
    assert "none\n0" in legend


def test_fields_without_a_finite_value_have_no_limits(look, tmp_path):
    w = chainrule.watch("Nothing")
    for k in range(3):
        w(
            k,
            cost=float("inf"),
            fields={"image": np.full((4, 4), np.nan), "line": np.full(9, np.nan)},
        )
    page = look(w.save(tmp_path / "run.html").as_uri())
    page.get_by_text("The cost is infinite at step 0").wait_for()
    fields = page.get_by_label("fields at this step")
    assert fields.locator(".colour-bar").count() == 0
    assert "no finite value · 16 not finite" in fields.inner_text()
    assert "nan" not in page.locator("main").last.inner_text().lower()
