"""The built documentation in a browser: every page, and one of each kind at all widths and in both themes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.page.conftest import SETTLED

ROOT = Path(__file__).parents[2]
LOOKS = [(1280, "light"), (390, "dark"), (1280, "dark"), (390, "light")]
OF_EACH_KIND = [
    "index.html",  # the hero, the doors
    "tutorial/pipeline.html",  # pictures of view
    "how-to/typed-arrays.html",  # tables
    "explanation/elimination.html",  # formulas
    "reference/harvest.html",  # docstrings
]

# axe needs minutes for the contrast of every word. Contrast depends on colours, sizes and weights only, so
# axe looks at the first word of each kind that is new; this marks those words and returns their kinds.
MARK_NEW_KINDS = """known => {
  const found = new Map(), old = new Set(known);
  const grounds = (node) => {
    const layers = [];
    for (; node; node = node.parentElement) {
      const { opacity, backgroundColor, backgroundImage } = getComputedStyle(node);
      layers.push(opacity, backgroundColor, backgroundImage);
      if (backgroundColor.startsWith("rgb(")) break; // nothing shines through this one
    }
    return layers;
  };
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const node = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || !node.checkVisibility({ visibilityProperty: true })) continue;
    const { color, fontSize, fontWeight } = getComputedStyle(node);
    const kind = [color, fontSize, fontWeight, ...grounds(node)].join(";");
    if (!old.has(kind) && !found.has(kind)) found.set(kind, node);
  }
  for (const node of found.values()) node.dataset.look = "";
  return [...found.keys()];
}"""
# As the switch of the theme does.
SHOW_THEME = (
    "theme => { document.body.dataset.mdColorScheme = { light: 'default', dark: 'slate' }[theme]; }"
)
CONTRAST = """async () => {
  const options = { runOnly: ["color-contrast"], resultTypes: ["violations"], preload: false };
  const { violations } = await axe.run({ include: [["[data-look]"]] }, options);
  for (const node of document.querySelectorAll("[data-look]")) delete node.dataset.look;
  return violations.flatMap(({ nodes }) => nodes.map(({ html }) => html));
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built pages."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    return folder


@pytest.fixture
def visit(browser, site, serve_folder, listen, find_faults, artifacts):
    """Opens a page of the docs at a width and in a theme; what is wrong with it fails."""
    address, wrong, kinds = serve_folder(site), [], {"light": set(), "dark": set()}
    context = browser.new_context()
    # Every page reads all texts for its search box, a second of work each time: here there are none.
    index = {**json.loads((site / "search" / "search_index.json").read_text()), "docs": []}
    context.route("**/search_index.json", lambda route: route.fulfill(json=index))
    page = context.new_page()
    listen(page, address, wrong)

    def visit(name, width, scheme, *, screenshot=False, prepare=None, contrast=True):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(address + name)
        if prepare:
            prepare(page)
        wrong.extend(
            (name, width, scheme, *fault) for fault in find_faults(page, contrast=contrast)
        )
        for theme in () if contrast else kinds:
            page.evaluate(SHOW_THEME, theme)
            page.evaluate(SETTLED)
            new = page.evaluate(MARK_NEW_KINDS, list(kinds[theme]))
            kinds[theme].update(new)
            low = page.evaluate(CONTRAST) if new else []
            wrong.extend((name, theme, "contrast", html) for html in low)
        if screenshot:
            file = f"docs-{name.replace('/', '-').removesuffix('.html')}-{width}-{scheme}.png"
            page.screenshot(path=artifacts / file, full_page=True)

    yield visit
    context.close()
    assert wrong == []


def test_every_page(visit, site):
    """One after the other in the four looks, so that each page has one and each look has many.

    The contrast of every kind of word is examined in both themes.
    """
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    assert len(pages) > 80
    for name, (width, scheme) in zip(pages, itertools.cycle(LOOKS), strict=False):
        visit(name, width, scheme, contrast=False)


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_pages_of_each_kind(visit, name):
    for width, scheme in LOOKS:
        visit(name, width, scheme, screenshot=True)


ARE_DARK = """() => [document.body, document.querySelector("iframe").contentDocument.body]
  .map((body) => getComputedStyle(body).backgroundColor.match(/[0-9]+/g).slice(0, 3))
  .map((parts) => parts.every((part) => part < 128)).join()"""


def test_the_theme_follows_the_system_and_the_switch(browser, site, serve_folder):
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto(f"{serve_folder(site)}tutorial/pipeline.html")
    page.wait_for_function(f"({ARE_DARK})() === 'false,false'")
    page.emulate_media(color_scheme="dark")
    page.reload()
    page.wait_for_function(f"({ARE_DARK})() === 'true,true'")
    page.get_by_title("Switch to the light theme").click()
    page.wait_for_function(f"({ARE_DARK})() === 'false,false'")
    page.get_by_title("Switch to the dark theme").click()
    page.emulate_media(color_scheme="light")
    page.reload()
    page.wait_for_function(f"({ARE_DARK})() === 'true,true'")
    context.close()


def test_the_menu_of_a_small_screen(visit):
    def open_menu(page):
        page.locator("label.md-header__button[for=__drawer]").click()
        page.locator(".md-sidebar--primary").get_by_text("Reference").first.wait_for()

    for scheme in ("light", "dark"):
        visit("index.html", 390, scheme, prepare=open_menu)
