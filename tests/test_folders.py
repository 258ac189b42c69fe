"""Where files of the user's go that are kept between processes."""

from pathlib import Path

import pytest

from chainrule._files import state_folder


@pytest.mark.parametrize("home", ["relative/folder", ""])
def test_state_goes_to_the_home_folder_unless_an_absolute_path_is_given(
    home, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", home)
    assert state_folder("x") == tmp_path / ".local/state/chainrule/x"
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert state_folder("x") == Path("/elsewhere/chainrule/x")


def test_a_user_without_a_home_has_no_folder(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(FileNotFoundError, match="XDG_STATE_HOME"):
        state_folder("x")
