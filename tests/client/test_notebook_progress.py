"""Progress bars in a notebook without ipywidgets, where rich alone would show a warning and no bar."""

import pytest

from chainrule import Component, component
from chainrule.runtime import progress


@component
def double(x: float) -> float:
    for step in (1, 2, 3, 4):
        progress(step / 4, f"<step {step}>")
    return 2 * x


def test_the_bar_is_one_output_that_changes():
    core = pytest.importorskip("IPython.core.interactiveshell")
    capture = pytest.importorskip("IPython.utils.capture")
    shell = core.InteractiveShell.instance()
    try:
        with capture.capture_output() as shown, Component.from_api(double) as handle:
            assert handle.submit("apply", {"x": 3.0}).result(progress=True) == {"result": 6.0}
            assert len(list(handle.map([{"x": 1.0}] * 3, progress=True))) == 3
    finally:
        shell.history_manager.end_session()
        core.InteractiveShell.clear_instance()
    assert (shown.stdout, shown.stderr) == ("", "")
    places = {output.transient["display_id"] for output in shown.outputs}
    assert len(places) == 2  # one for each bar
    last = shown.outputs[-1].data["text/html"]
    assert 'value="1" max="1"' in last
    assert "100 %" in last
    assert all("<step" not in output.data["text/html"] for output in shown.outputs)
