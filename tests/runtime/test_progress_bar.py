import io

import pytest

from chainrule import _progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "patience_s", "shown"),
    [(Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False)],
)
def test_bar_only_on_a_terminal_and_only_for_long_work(
    monkeypatch, capsys, stream, patience_s, shown
):
    monkeypatch.setattr(_progress, "PATIENCE_S", patience_s)
    monkeypatch.setattr(_progress.sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert list(_progress.track(range(5), "differences", 5)) == list(range(5))
    assert ("differences" in stream.getvalue()) is shown
    assert capsys.readouterr().out == ""


def test_bar_can_be_switched_off(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(_progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(_progress.sys, "stderr", stream)
    list(_progress.track(range(5), "differences", 5, show=False))
    assert stream.getvalue() == ""


def test_work_without_a_known_end_shows_a_note(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(_progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(_progress.sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with _progress.progress_bar("searching", None) as advance:
        advance(0.5, "best 7")
        advance(1.5, "best 6")
    assert "searching best 6" in stream.getvalue()
