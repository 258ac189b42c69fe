"""Pages of pictures in a browser and in a notebook: pipelines as graph and as matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule
from chainrule import view
from chainrule._jaxpr import enable_x64
from chainrule._results import Result

SIZES = [(1280, "light"), (390, "dark")]


def is_within(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def flow(url):
    """A gradient through a program in this process, one that is served, and JAX."""
    lines = np.linspace(-1.0, 1.0, 24)
    smooth = chainrule.from_callable(
        lambda field: (field + field.T) / 2, vjp=lambda _, u: ((u + u.T) / 2,),
        abstract=lambda field: field, name="symmetry",
    )  # fmt: skip

    def cost(place, weight):
        with jax.named_scope("field"):
            field = jnp.exp(-4 * (lines[:, None] - place) ** 2 - lines**2)
        with jax.named_scope("misfit"):
            misfit = jnp.sum(chainrule.sow(smooth(field), "even") ** 2)
        loads = 1000.0 * jnp.stack([misfit, weight, weight, misfit])
        return chainrule.apply_component(beam, {"loads": loads}, infer_by_evaluation=True)["tip"]

    with enable_x64(True), chainrule.Component.from_url(f"{url}/c/beam_component") as beam:
        return view.gradient_flow(cost, 0.3, 0.5, measure=True)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_link_of_a_graph_shows_its_fields(look, tmp_path, flow, width, scheme):
    page = look(flow.save(tmp_path / "flow.html").as_uri(), width, scheme)
    assert is_within(page)
    served = page.locator("[data-name]", has_text="http://127.0.0.1")
    assert "apply · NumPy" in served.text_content()
    assert ", vjp " in served.text_content()
    details = page.get_by_label("details")
    is_narrow = page.get_by_role("button", name="matrix").get_attribute("aria-pressed") == "true"
    assert is_narrow == (width == 390)  # two programs beside each other do not fit there
    page.get_by_role("button", name="graph").click()
    page.get_by_role("button", name="symmetry → misfit").focus()
    page.keyboard.press("Enter")
    assert "even f64[24,24]" in details.inner_text()
    assert details.get_by_role("img", name="image of value of even").is_visible()
    (link,) = (each for each in flow.links if each.flows[0].name == "even")
    assert f"cotangent, norm {link.cotangent_norm:.3g}" in details.inner_text()
    assert is_within(page)
    page.get_by_role("button", name="field", exact=True).click()
    assert "exp" in details.inner_text()
    page.get_by_role("button", name="symmetry → misfit").click()


@pytest.fixture(scope="module")
def layers():
    def network(x):
        for k in range(24):
            with jax.named_scope(f"block {k // 6}"):
                x = chainrule.sow(jnp.tanh(0.9 * x), f"layer {k}")
        return jnp.sum(jnp.log(x))

    return view.gradient_flow(network, jnp.linspace(0.0, 1.0, 4))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_a_matrix_is_searched_and_collapsed(look, tmp_path, layers, width, scheme):
    page = look(layers.save(tmp_path / "layers.html").as_uri(), width, scheme)
    assert is_within(page)
    details = page.get_by_label("details")
    first = layers.label(layers.links[-1].source)  # log(0): where the first infinity comes from
    assert f"{first} → result" in details.inner_text()
    rows = page.locator(".matrix-label")
    assert rows.count() == 27
    page.get_by_role("button", name="collapse all").click()
    assert rows.all_text_contents()[1:5] == [f"▸ block {k} (6)" for k in range(4)]
    page.get_by_role("button", name="block 1 (6) → block 2 (6)").or_(
        page.get_by_role("button", name="block 1 (layer 11) → block 2 (layer 12), value")
    ).first.press("Enter")
    assert "layer 11 f32[4]" in details.inner_text()
    page.get_by_role("button", name="expand block 2").click()
    assert rows.count() == 12
    page.get_by_label("search").fill("layer 14")
    page.get_by_text("1 found").wait_for()
    assert rows.count() == 3  # with its neighbours
    assert is_within(page)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_an_elimination_is_stepped_through_as_a_matrix(look, tmp_path, width, scheme):
    def blocks(x, y):
        for k in range(8):
            with jax.named_scope(f"block {k // 4}"):
                x, y = jnp.sin(x * y) + x, jnp.cos(y) * x
        return x, y

    steps = view.elimination(blocks, "auto", 0.3, 0.4)
    small = view.elimination(lambda x: jnp.sin(x) * x, "auto", 0.3)
    page = look(small.save(tmp_path / "small.html").as_uri(), width, scheme)
    page.get_by_text("eliminate 1", exact=True).click()
    page = look(steps.save(tmp_path / "steps.html").as_uri(), width, scheme)
    assert page.locator("h1").inner_text() == steps.title
    assert page.locator(".matrix-cell").count() == len(steps.edges)
    # A stage says its name while it is open.
    assert page.get_by_role("button", name="collapse block 0 · ").count() == 1
    page.get_by_role("button", name="step on").click()
    page.get_by_text(f"Eliminate {steps.steps[0].title}: ").wait_for()
    assert page.locator(".matrix-cell").count() == len(steps.steps[0].edges)
    assert str(steps.steps[0].products[0]) in page.locator(".facts").inner_text()
    page.get_by_role("slider", name="step").press("End")
    assert page.locator(".matrix-cell").count() == len(steps.steps[-1].edges)
    page.get_by_role("button", name="step back").click()
    assert is_within(page)


def test_pictures_in_a_notebook_are_framed_by_nbconvert(look, tmp_path, serve_folder, flow, layers):
    nbformat = pytest.importorskip("nbformat")
    nbconvert = pytest.importorskip("nbconvert")
    notebook = nbformat.v4.new_notebook()
    run = chainrule.watch("A run")
    for step in range(5):
        run(step, cost=0.5**step)
    for name, shown in (("flow", flow), ("layers", layers), ("run", run)):
        output = nbformat.v4.new_output("display_data", {"text/html": shown._repr_html_()})
        notebook.cells.append(nbformat.v4.new_code_cell(name, outputs=[output]))
    exporter = nbconvert.HTMLExporter(template_name="basic")
    body, _ = exporter.from_notebook_node(notebook)
    head = '<meta charset="utf-8"><title>Notebook</title><link rel="icon" href="data:,">'
    text = f'<!doctype html><html lang="en">{head}<main><h1>Notebook</h1>{body}</main></html>'
    (tmp_path / "index.html").write_text(text)
    page = look(serve_folder(tmp_path))
    for title in ("Pipeline", "A run"):
        frame = page.locator(f'iframe[title="{title}"]').first
        inside = frame.content_frame
        inside.locator("h1").first.wait_for(state="attached")
        high = inside.locator("html").evaluate("page => page.offsetHeight")
        page.wait_for_function(
            '([title, high]) => document.querySelector(`iframe[title="${title}"]`).clientHeight >= high',
            arg=[title, high],
        )
    assert is_within(page)


def test_a_tall_array_of_a_result_stays_small_in_a_notebook(open_page, tmp_path, serve_folder):
    """Notebooks have `height: auto` for images, which is stronger than the attribute."""
    shown = Result({"points": np.arange(98.0).reshape(49, 2)})._repr_html_()
    style = "<style>img { max-width: 100%; height: auto }</style>"
    (tmp_path / "index.html").write_text(f"<!doctype html>{style}{shown}")
    box = open_page(serve_folder(tmp_path)).get_by_role("img").bounding_box()
    assert (box["width"], box["height"]) == (120, 96)
