"""Hooks of `mkdocs build`: what can be known from the code is not written twice.

`<!-- commands -->` becomes the commands and options of the command line, and `<!-- serve options -->` the
table of `ServeOptions`. `<!-- show: name -->` becomes the picture that the Python blocks above it on the page
call so; the page's blocks are run for that, as the tests run them (conftest.py at the root). Formulas become
MathML, which browsers draw without a script. In the dark theme `x-dark.png` is shown in the place of `x.png`.
`llms.txt` lists the pages for assistants, as https://llmstxt.org describes it.
"""

import re
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from html import unescape
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import Environment
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from chainrule.cli.internal import COMMANDS, help_of
from chainrule.serve.internal import option_table

_COMMANDS = "<!-- commands -->"
_SERVE_OPTIONS = "<!-- serve options -->"
_SHOW = "<!-- show:"
_BLOCK_OR_SHOW = re.compile(
    r'^```python(?: title="(?P<file>[^"]+)")?\n(?P<code>.*?)^```|<!-- show: (?P<name>\w+) -->',
    re.M | re.S,
)

_PLOT = re.compile(r"!\[(?P<about>[^\]]*)\]\((?P<path>[^)\s]+)\.png\)")
_FORMULA = re.compile(
    r'<(?P<element>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=element)>', re.S
)

# What stands before or between paragraphs: the front matter, headings, blocks of code, comments, HTML.
_NOT_TEXT = re.compile(
    r"\A---\n.*?\n---\n|^#[^\n]*|^```.*?^```|^<!--.*?-->|^<div.*?^</div>|^--8<--[^\n]*|^!\[[^\n]*",
    re.M | re.S,
)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Replace the markers of a page, and give its pictures to the themes that they are made for."""
    markdown = _with_dark_twins(markdown, Path(config.docs_dir, page.file.src_uri).parent)
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, "\n".join(_commands()))
    markdown = markdown.replace(_SERVE_OPTIONS, option_table())
    return _with_pictures(markdown) if _SHOW in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Draw the formulas that `pymdownx.arithmatex` has marked."""
    return _FORMULA.sub(_mathml, html)


def on_post_page(html: str, **_: Any) -> str:
    """Name what the theme leaves without a name for screen readers, or gives the name of something else."""
    html = html.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)
    return html.replace(
        '<nav class="md-nav" aria-label="', '<nav class="md-nav" aria-label="On this page: '
    )


def on_post_template(output: str, **_: Any) -> str:
    """The same for the page of addresses that do not exist."""
    return on_post_page(output)


def on_env(env: Environment, config: MkDocsConfig, files: Files) -> None:
    """Write `llms.txt`: the pages in the order of the navigation, each with what it is about."""
    pages = [file.page for file in files.documentation_pages() if file.page]
    page = next((page for page in pages if page.previous_page is None), None)
    lines, section = [f"# {config.site_name}", "", f"> {config.site_description}"], None
    while page:
        if (here := page.ancestors[-1].title if page.ancestors else "Pages") != section:
            section = here
            lines += ["", f"## {section}", ""]
        lines.append(f"- [{page.title}]({page.url}): {summary(page.markdown or '')}")
        page = page.next_page
    target = Path(config.site_dir, "llms.txt")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


def summary(markdown: str) -> str:
    """The first sentence of a page's text, and the second if the first is short, without links."""
    text = _NOT_TEXT.sub("", markdown)
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", paragraph).replace("**", "")
    first, *more = re.split(r"(?<=[.:?]) (?=[A-Z`])", plain)
    return " ".join([first, *more[: len(first) < 80]]).rstrip(":")


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found["element"] == "div" else "inline"
    return convert(unescape(found["latex"]), display=display)


def _with_dark_twins(markdown: str, folder: Path) -> str:
    """Where `x-dark.png` lies beside `x.png`, each is shown in one theme."""

    def both(found: re.Match[str]) -> str:
        picture = f"![{found['about']}]({found['path']}"
        if not (folder / f"{found['path']}-dark.png").exists():
            return found[0]
        return f"{picture}.png#only-light)\n{picture}-dark.png#only-dark)"

    return _PLOT.sub(both, markdown)


def _with_pictures(markdown: str) -> str:
    namespace: dict[str, Any] = {}

    def replace(found: re.Match[str]) -> str:
        if found["name"]:
            return f'<div class="wide">{namespace[found["name"]].html()}</div>'
        if found["file"]:
            file = Path(found["file"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(found["code"])
        else:
            with redirect_stdout(StringIO()):
                exec(found["code"], namespace)
        return found[0]

    with TemporaryDirectory() as folder, chdir(folder):
        return _BLOCK_OR_SHOW.sub(replace, markdown)


def _commands() -> Iterator[str]:
    for name, command in COMMANDS.items():
        parser = ArgumentParser(add_help=False)
        command.add_arguments(parser)
        yield f"## `{name}`\n\n{command.help}\n\n```sh\n{command.example}\n```\n"
        yield "| argument | meaning |\n| --- | --- |"
        yield from (_row(action) for action in parser._actions if action.help != SUPPRESS)
        yield ""


def _row(action: Action) -> str:
    value = "" if action.nargs == 0 else f" {_value(action)}"
    shown = ", ".join(action.option_strings) + value if action.option_strings else _value(action)
    return f"| `{shown}` | {help_of(action)} |"


def _value(action: Action) -> str:
    """What stands for the value; choices are separated as a table allows it."""
    if action.metavar:
        return str(action.metavar)
    if action.choices:
        return " or ".join(str(choice) for choice in action.choices)
    return action.dest.upper()
