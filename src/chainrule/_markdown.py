"""Texts of authors, which are Markdown, as HTML for notebooks and pages.

Markup in the text stays text, pictures are links, and links lead to no script. The scripts of the page read
the same Markdown (`serve/_web/markdown.js`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from chainrule._tables import Html

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


def markdown(text: str) -> Html:
    """The HTML of a text; a single line has no paragraph around it.

    Example:
        >>> markdown("of `x`, not <b>")
        'of <code>x</code>, not &lt;b&gt;'
    """
    text = text.strip()
    parser = _parser()
    return Html(parser.render(text) if "\n" in text else parser.renderInline(text))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # only where HTML is made

    parser = MarkdownIt("commonmark", {"html": False}).disable("image")
    # The headings are those of the page.
    parser.add_render_rule("heading_open", lambda *_: "<p><strong>")
    parser.add_render_rule("heading_close", lambda *_: "</strong></p>")
    return parser
