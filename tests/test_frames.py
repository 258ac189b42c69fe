"""What is typed into IPython or Python is the user's, as his files are."""

import os
import subprocess
import sys

import pytest

from chainrule._frames import is_generated, is_installed, is_ours

CELLS = """\
from chainrule import component
@component
def area(width: float) -> float:
    return {}["E"]

area.apply({"breadth": 3.0})
area.apply({"width": 3.0})
"""


def test_names_of_code():
    typed = ["<ipython-input-3-0a>", "<stdin>"]
    assert not any(is_generated(name) or is_installed(name) for name in typed)
    assert all(is_generated(name) and is_installed(name) for name in ["<string>", "<__array__>"])
    assert not is_ours(is_ours.__code__.co_filename.replace("chainrule", "chainrule_of_a_user"))
    assert is_ours(is_ours.__code__.co_filename)


def test_errors_in_ipython(tmp_path):
    pytest.importorskip("IPython")
    command = [
        sys.executable,
        "-m",
        "IPython",
        "--colors=nocolor",
        "--no-banner",
        "--simple-prompt",
    ]
    shown = subprocess.run(
        command, input=CELLS, text=True, capture_output=True, timeout=600,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    ).stdout  # fmt: skip
    assert '----> 1 area.apply({"breadth": 3.0})' in shown
    assert "no such field as 'breadth'" in shown
    assert "apply raised KeyError: 'E' at <ipython-input" in shown
    assert 'return {}["E"]' in shown
    assert "_handlers.py" not in shown
