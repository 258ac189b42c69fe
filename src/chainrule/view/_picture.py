"""What every picture can do: show itself in a notebook, and be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from chainrule._errors import InputError

__all__ = ["Picture"]


class Picture(ABC):
    """Something that can be drawn. Notebooks show it; `save` writes it to a file."""

    @abstractmethod
    def svg(self) -> str:
        """The picture as the text of an SVG document."""

    def html(self) -> str:
        """The picture for a page: the SVG, or something to click on where that helps."""
        return self.svg()

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return self.html()

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file.

        Args:
            path: ends in `.svg`, or in `.html` for a page that needs nothing else.

        Returns:
            The path.

        Raises:
            InputError: another ending.
        """
        path = Path(path)
        if path.suffix == ".svg":
            text = self.svg()
        elif path.suffix == ".html":
            text = f'<!doctype html><meta charset="utf-8"><title>Chainrule</title>{self.html()}'
        else:
            raise InputError(
                f"Pictures are saved as .svg or .html, but the file is called {path.name!r}.",
                code="picture_format",
            )
        path.write_text(text, encoding="utf-8")
        return path
