"""What all pictures share: files and their endings, nothing fetched from elsewhere."""

import numpy as np
import pytest

from chainrule import view
from chainrule._errors import InputError


def test_saved_files(tmp_path):
    picture = view.spy(np.eye(3))
    svg = picture.save(tmp_path / "a.svg")
    assert svg.read_text() == picture.svg() == picture._repr_svg_()
    html = picture.save(str(tmp_path / "a.html")).read_text()
    assert picture._repr_html_() in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")


def test_unknown_ending(tmp_path):
    with pytest.raises(InputError, match=r"\.svg or \.html") as caught:
        view.spy(np.eye(3)).save(tmp_path / "a.png")
    assert caught.value.code == "picture_format"
    assert not (tmp_path / "a.png").exists()
