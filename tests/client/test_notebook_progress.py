"""Progress bars in a notebook without ipywidgets, where rich alone would show a warning and no bar."""

import builtins

from chainrule import Component, component


class ZMQInteractiveShell:
    """The name by which rich knows the shell of a notebook."""


@component
def double(x: float) -> float:
    return 2 * x


def test_the_bar_is_text(monkeypatch, capsys):
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    with Component.from_api(double) as component:
        assert component.submit("apply", {"x": 3.0}).result(progress=True) == {"result": 6.0}
        assert len(list(component.map([{"x": 1.0}] * 3, progress=True))) == 3
    shown = capsys.readouterr()
    assert shown.err.count("100%") == 2
    assert shown.out == ""
