"""What all pictures share: files and their endings, nothing fetched from elsewhere."""

from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from chainrule import view
from chainrule.errors import InputError
from chainrule.harvest import sow


def test_saved_files(tmp_path):
    picture = view.spy(np.eye(3))
    svg = picture.save(tmp_path / "a.svg")
    assert svg.read_text() == picture.svg() == picture._repr_svg_()
    html = picture.save(str(tmp_path / "a.html")).read_text()
    assert picture._repr_html_() in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


def test_unknown_ending(tmp_path):
    with pytest.raises(InputError, match=r"\.svg, \.html") as caught:
        view.spy(np.eye(3)).save(tmp_path / "a.tiff")
    assert caught.value.code == "picture_format"
    assert not (tmp_path / "a.tiff").exists()


def lion(x, y):
    p = x * y
    q = jnp.sin(p)
    return q * p, jnp.cos(q)


def pictures():
    def f(x):
        return jnp.sum(sow(jnp.sin(x), "sine") ** 2)

    yield view.pipeline(f, jnp.ones(3))
    yield view.gradient_flow(f, jnp.ones(3))
    yield view.spy(np.eye(40))
    yield view.elimination(lion, [(2, 3), 1, 2], 0.3, 0.4)


@pytest.mark.parametrize("picture", list(pictures()), ids=lambda picture: type(picture).__name__)
def test_matplotlib_draws_what_svg_does(picture, tmp_path):
    root = ElementTree.fromstring(picture.svg())
    written = {e.text for e in root.iter("{http://www.w3.org/2000/svg}text") if e.text}
    axes = picture.plot()
    assert written == {text.get_text() for text in axes.texts} - {""}
    assert axes.get_xlim() == (0, picture.drawing().width)
    assert axes.get_ylim() == (picture.drawing().height, 0)
    image = imread(picture.save(tmp_path / "a.png"))
    assert image.min() < 0.5  # ink
    assert picture.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_entries_are_painted_where_they_are():
    """The identity: dark along the diagonal of the panel, light beside it."""
    axes = view.spy(np.eye(4)).plot()
    figure = axes.get_figure()
    FigureCanvasAgg(figure).draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., 0]
    scale = pixels.shape[1] / axes.get_xlim()[1]
    # The panel of 240 × 240 pixels begins at (16, 36).
    rows = [int((36 + 60 * (k + 0.5)) * scale) for k in range(4)]
    columns = [int((16 + 60 * (k + 0.5)) * scale) for k in range(4)]
    assert (pixels[np.ix_(rows, columns)] < 128).tolist() == np.eye(4, dtype=bool).tolist()


def test_on_axes_of_somebody_else():
    axes = Figure().subplots()
    assert view.spy(np.eye(3)).plot(axes) is axes
