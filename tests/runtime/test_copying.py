"""Results that several threads copy."""

import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule import from_callable
from chainrule.runtime import _copy_team, _copying
from chainrule.runtime._copying import copy_into, write_pieces


@pytest.fixture(autouse=True)
def team(monkeypatch):
    """Three helpers, however few processors there are, for arrays of any size."""
    team = _copy_team.Team(3)
    monkeypatch.setattr(_copying, "_team", lambda: team)
    monkeypatch.setattr(_copying, "_LARGE_BYTES", 0)
    return team


LAYOUTS = {
    "contiguous": lambda array: array,
    "transposed": lambda array: array.T.copy().T,
    "strided": lambda array: np.repeat(array, 2, axis=0)[::2],
    "backwards": lambda array: array[::-1].copy()[::-1],
}


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64", "complex64", "int8", "bool"]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    narrower=st.booleans(),
)
def test_a_copy_is_a_copy(shape, dtype, layout, narrower):
    numbers = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    source = LAYOUTS[layout](numbers)
    target = np.full(shape, 7, "float32" if narrower and dtype == "float64" else dtype)
    copy_into(target, source)
    np.testing.assert_array_equal(target, numbers)


def test_a_large_result_of_a_host_call_is_whole(monkeypatch):
    monkeypatch.setattr(_copying, "_LARGE_BYTES", 1 << 21)
    x = np.arange(1_000_003, dtype=np.float32)
    double = from_callable(lambda x: 2 * x, abstract=lambda x: x)
    np.testing.assert_array_equal(jax.jit(double)(x), 2 * x)


def test_pieces_of_any_size_are_written_one_after_the_other(monkeypatch):
    monkeypatch.setattr(_copying, "_LARGE_BYTES", 50)
    pieces = [b"head", memoryview(bytes(range(200))), b"", np.arange(100, dtype=np.uint8).data]
    target = np.full(400, 255, np.uint8)
    assert write_pieces(target, pieces) == 304
    assert bytes(target) == b"".join(pieces) + b"\xff" * 96


def test_callers_at_the_same_time_do_not_wait_for_each_other(team):
    with team._busy:
        target = np.zeros(100)
        copy_into(target, np.ones(100))
    assert target.all()


def test_an_interrupted_copy_leaves_nobody_writing(team, monkeypatch):
    """However often somebody presses Ctrl-C: what was lent is not written once the call is over."""
    wait_for, presses = _copy_team._wait_for, iter([True, True, False])

    def interrupted(parts):
        if next(presses):
            raise KeyboardInterrupt
        wait_for(parts)

    monkeypatch.setattr(_copy_team, "_wait_for", interrupted)
    target = np.zeros(100)
    with pytest.raises(KeyboardInterrupt):
        copy_into(target, np.ones(100))
    assert next(presses, None) is None
    target[:] = 5
    monkeypatch.setattr(_copy_team, "_wait_for", wait_for)
    copy_into(np.zeros(100), np.ones(100))  # every helper has had another turn since
    assert (target == 5).all()


def test_references_to_what_was_lent_are_gone(team):
    target, source = np.zeros(100), np.ones(100)
    before = sys.getrefcount(target), sys.getrefcount(source)
    copy_into(target, source)
    assert (sys.getrefcount(target), sys.getrefcount(source)) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_helpers_of_its_own():
    program = """
        import os, sys
        import numpy as np
        from chainrule.runtime import _copying
        _copying._LARGE_BYTES = 0
        os.sched_getaffinity = lambda pid: range(4)
        def copies():
            target = np.zeros(100)
            _copying.copy_into(target, np.ones(100))
            return bool(_copying._team()._helpers) and target.all()
        assert copies()
        if not (child := os.fork()):
            os._exit(0 if copies() else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
