"""Where files of the user's go that are kept between processes."""

from pathlib import Path

import pytest

from chainrule._folders import cache_folder


@pytest.mark.parametrize("home", ["relative/folder", ""])
def test_caches_go_to_the_home_folder_unless_an_absolute_path_is_given(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert cache_folder("x") == tmp_path / ".cache/chainrule/x"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder("x") == Path("/elsewhere/chainrule/x")


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(FileNotFoundError, match="XDG_CACHE_HOME"):
        cache_folder("x")
