"""Every public package has a place in the reference, and every page a place in the navigation."""

import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import chainrule

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _public_packages():
    for module in pkgutil.walk_packages(chainrule.__path__, "chainrule."):
        parts = module.name.split(".")
        is_public = not any(part.startswith("_") for part in parts)
        # The command line has a page of its own; `compat` has the names of other projects.
        if module.ispkg and is_public and parts[1] not in ("cli", "compat"):
            yield module.name


@pytest.mark.parametrize("package", sorted(_public_packages()))
def test_package_is_in_the_reference(package):
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    assert re.search(rf"^::: {re.escape(package)}$", pages, re.MULTILINE)


_LISTS = re.compile(r"^::: ([\w.]+)\n(?:    .*\n)*?      members:\n((?:        - \w+\n)+)", re.M)


@pytest.mark.parametrize(
    "page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem
)
def test_lists_of_members_are_complete(page):
    """A page that orders its members by hand names all of them; dtypes are named in a sentence."""
    text = page.read_text()
    for package, listed in _LISTS.findall(text):
        public = set(importlib.import_module(package).__all__)
        in_sentences = set(re.findall(r"`(\w+)`", text))
        assert set(re.findall(r"- (\w+)", listed)) <= public
        assert public <= set(re.findall(r"- (\w+)", listed)) | in_sentences


def test_every_page_is_in_the_navigation():
    # A page without a name of its own is that of its section.
    listed = set(
        re.findall(r"[:-] ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    )
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert listed == there


def test_every_page_says_what_it_is_about():
    """`llms.txt` of the site lists every page with this text."""
    summary = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))["summary"]
    found = {page: summary(page.read_text()) for page in DOCS.rglob("*.md")}
    assert {page: text for page, text in found.items() if not 20 < len(text) < 400} == {}
