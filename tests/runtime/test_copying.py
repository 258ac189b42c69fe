"""Results that several threads copy."""

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
import threading

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule import from_callable
from chainrule._c_library import load_c_library
from chainrule.runtime import _copying
from chainrule.runtime._copying import copy_into, write_pieces


@pytest.fixture(scope="module")
def helpers(tmp_path_factory):
    """Three helpers, however few processors there are, of a library that nobody else has loaded."""
    library = load_c_library(_copying.SOURCE)
    if library is None:
        pytest.skip("no compiler")
    own = shutil.copy(library._name, tmp_path_factory.mktemp("library"))
    team = _copying._Team()
    team.start(ctypes.CDLL(own), 3)
    return team


@pytest.fixture(autouse=True)
def team(helpers, monkeypatch):
    """They help with arrays of any size."""
    monkeypatch.setattr(_copying, "_team", helpers)
    monkeypatch.setattr(_copying, "_LARGE_BYTES", 0)
    return helpers


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
    monkeypatch.setattr(_copying, "_LARGE_BYTES_FOR_OTHERS", 50)
    pieces = [b"head", memoryview(bytes(range(200))), b"", np.arange(100, dtype=np.uint8).data]
    target = np.full(400, 255, np.uint8)
    assert write_pieces(target, pieces) == 304
    assert bytes(target) == b"".join(pieces) + b"\xff" * 96


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("pieces", [1, 2, 5, 40])
def test_every_byte_is_copied_and_none_beside(pieces, extra):
    size = pieces * (1 << 17) + extra
    source = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    room = np.empty(size + 2, np.uint8)
    for _ in range(20):  # with helpers that are awake, and some that come late
        room[:] = 255
        copy_into(room[1:-1], source)
        np.testing.assert_array_equal(room[1:-1], source)
        assert room[0] == room[-1] == 255


def test_callers_at_the_same_time_do_not_disturb_each_other():
    wrong = []

    def copy_often(number):
        source = np.full(1 << 20, number, np.uint8)
        for _ in range(30):
            target = np.zeros_like(source)
            copy_into(target, source)
            if not (target == number).all():
                wrong.append(number)

    callers = [threading.Thread(target=copy_often, args=(n,)) for n in range(1, 5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_call_does_not_wait_for_a_compiler(monkeypatch):
    """Who is first calls the helpers, and copies alone; they come when their library is there."""
    may_go_on = threading.Event()
    library = ctypes.CDLL(None)  # has no such functions, and is not asked for them

    def slow(source):
        may_go_on.wait()
        return library

    monkeypatch.setattr("chainrule._c_library.load_c_library", slow)
    monkeypatch.setattr(_copying, "_processors", lambda: 2)
    team, started = _copying._Team(), threading.Event()
    monkeypatch.setattr(team, "start", lambda *given: (given == (library, 1)) and started.set())
    assert not team.copy(np.zeros(1), np.ones(1))
    assert not team.copy(np.zeros(1), np.ones(1))
    assert not started.is_set()
    may_go_on.set()
    assert started.wait(60)


@pytest.mark.parametrize("reason", ["no compiler", "one processor", "no threads"])
def test_without_help_a_copy_is_a_copy(reason, monkeypatch):
    def no_threads(thread):
        raise RuntimeError("can't start new thread")

    if reason == "no compiler":
        monkeypatch.setattr("chainrule._c_library.load_c_library", lambda source: None)
    if reason == "no threads":
        monkeypatch.setattr(threading.Thread, "start", no_threads)
    monkeypatch.setattr(_copying, "_processors", lambda: 1 if reason == "one processor" else 2)
    monkeypatch.setattr(_copying, "_team", _copying._Team())
    for _ in range(2):
        target = np.zeros(100)
        copy_into(target, np.ones(100))
        assert target.all()


def test_references_to_what_was_lent_are_gone():
    target, source = np.zeros(100), np.ones(100)
    before = sys.getrefcount(target), sys.getrefcount(source)
    copy_into(target, source)
    assert (sys.getrefcount(target), sys.getrefcount(source)) == before


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="not Linux")
def test_a_forked_child_has_helpers_of_its_own():
    program = """
        import os, sys, threading, time
        from pathlib import Path
        import numpy as np
        from chainrule.runtime import _copying
        _copying._LARGE_BYTES = 0
        _copying._processors = lambda: 4
        def helpers():
            names = (task.read_text() for task in Path("/proc/self/task").glob("*/comm"))
            return sum(name.strip() == "chainrule-copy" for name in names)
        def copies():
            source = np.arange(1_000_000)
            _copying.copy_into(np.zeros_like(source), source)
            for thread in threading.enumerate():
                if thread.name == "chainrule-build":
                    thread.join()
            while helpers() < 3:
                time.sleep(0.01)
            for _ in range(20):
                target = np.zeros_like(source)
                assert _copying._team.copy(target, source)
                assert (target == source).all()
        copies()
        if not (child := os.fork()):
            assert helpers() == 0
            copies()
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
