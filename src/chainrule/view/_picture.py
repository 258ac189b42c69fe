"""What every picture can do: show itself in a notebook, be drawn by matplotlib, and be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from chainrule._errors import InputError
from chainrule.view._drawing import Drawing
from chainrule.view._svg import document

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLOTS = (".png", ".pdf")
_DOTS_PER_INCH = 192
_PAGE_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Chainrule</title>'
    "<style>body{font:14px/1.5 system-ui,sans-serif;margin:1.5rem}</style>"
)


class Picture(ABC):
    """Something that can be drawn. Notebooks show it; `save` writes it to a file."""

    @abstractmethod
    def drawing(self) -> Drawing:
        """The shapes that the picture is made of."""

    def svg(self) -> str:
        """The picture as the text of an SVG document."""
        return document(self.drawing())

    def html(self) -> str:
        """The picture for a page: the SVG, or something to click on where that helps."""
        return self.svg()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the picture with matplotlib; needs `chainrule[view]`.

        Args:
            ax: the axes to draw on; new ones, as large as the picture, when `None`.

        Returns:
            The axes.
        """
        from chainrule.view._matplotlib import draw

        return draw(self.drawing(), ax)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return self.html()

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file.

        Args:
            path: ends in `.svg`, in `.html` for a page that needs nothing else, or in `.png` or `.pdf`, for
                which matplotlib is needed.

        Returns:
            The path.

        Raises:
            InputError: another ending.
        """
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        elif path.suffix == ".html":
            path.write_text(_PAGE_HEAD + self.html(), encoding="utf-8")
        elif path.suffix in _PLOTS:
            figure = self.plot().get_figure(root=True)
            assert figure is not None
            figure.savefig(path, dpi=_DOTS_PER_INCH)
        else:
            raise InputError(
                f"Pictures are saved as .svg, .html, .png or .pdf, but the file is called {path.name!r}.",
                code="picture_format",
            )
        return path
