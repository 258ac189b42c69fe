"""Threads that share work."""

import ctypes
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from chainrule import _team
from chainrule._team import Team

PIECE_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


def share(library, function, pieces, expected_ns=0):
    arguments = ctypes.c_void_p(7), ctypes.c_size_t(pieces), ctypes.c_longlong(expected_ns)
    library.chainrule_share(PIECE_FUNCTION(function), *arguments)


@pytest.mark.parametrize("pieces", [0, 1, 2, 100])
@pytest.mark.parametrize("expected_ns", [0, 1_000_000])
def test_every_piece_is_done_once(own_team, pieces, expected_ns):
    done = []
    for _ in range(10):
        share(own_team.library(), lambda *given: done.append(given), pieces, expected_ns)
    assert sorted(done) == [(7, piece) for piece in range(pieces) for _ in range(10)]


def test_the_caller_takes_pieces_from_the_front_and_helpers_from_the_back(own_team):
    """Who has the first piece waits for the last one, so that somebody has to come."""
    threads, last_is_done = {}, threading.Event()

    def function(context, piece):
        threads[piece] = threading.get_native_id()
        if piece == 0:
            assert last_is_done.wait(60)
        elif piece == 99:
            last_is_done.set()

    share(own_team.library(), function, 100, 1_000_000)
    mine = sorted(piece for piece, thread in threads.items() if thread == threading.get_native_id())
    assert mine == list(range(len(mine)))
    assert len(mine) < len(threads) == 100


def test_work_within_work_and_beside_it_is_done_alone(own_team):
    inner = []

    def function(context, piece):
        share(own_team.library(), lambda *given: inner.append((piece, given[1])), 3)

    share(own_team.library(), function, 5)
    assert sorted(inner) == [(piece, part) for piece in range(5) for part in range(3)]


def test_a_call_does_not_wait_for_a_compiler(monkeypatch):
    """Who is first sends for the helpers, and works alone; they come when their library is there."""
    may_go_on = threading.Event()
    library = ctypes.CDLL(None)  # has no such functions, and is not asked for them

    def slow(source):
        may_go_on.wait()
        return library

    monkeypatch.setattr("chainrule._c_library.load_c_library", slow)
    monkeypatch.setattr("chainrule._team.processors", lambda: 2)
    team, started = Team(), threading.Event()
    monkeypatch.setattr(team, "start", lambda *given: (given == (library, 1)) and started.set())
    assert team.library() is None
    assert team.library() is None
    assert not started.is_set()
    may_go_on.set()
    team.wait_for_library()
    assert started.is_set()


@pytest.mark.parametrize("reason", ["no compiler", "one processor", "no threads"])
@pytest.mark.parametrize("first", ["library", "wait_for_library"])
def test_nobody_comes(reason, first, monkeypatch):
    def no_threads(thread):
        raise RuntimeError("can't start new thread")

    if reason == "no compiler":
        monkeypatch.setattr("chainrule._c_library.load_c_library", lambda source: None)
    if reason == "no threads":
        monkeypatch.setattr(threading.Thread, "start", no_threads)
        monkeypatch.setattr(Team, "start", lambda *given: None)
    processors = 1 if reason == "one processor" else 2
    monkeypatch.setattr("chainrule._team.processors", lambda: processors)
    team = Team()
    assert getattr(team, first)() is None
    assert team.wait_for_library() is None
    assert team.library() is None


@pytest.mark.parametrize(
    ("limit", "count"),
    [("max 100000", 8), ("150000 100000", 1), ("50000 100000", 1), ("400000 100000", 4), (None, 8)],
)
def test_a_container_may_have_less_than_the_machine(limit, count, tmp_path, monkeypatch):
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(_team, "_CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert _team.processors.__wrapped__() == count


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="not Linux")
def test_a_forked_child_has_helpers_of_its_own(own_team):  # skipped where there are none
    program = """
        import os, sys, time
        from pathlib import Path
        import numpy as np
        from chainrule import _team
        from chainrule.runtime._copying import _copy_together
        _team.processors = lambda: 4
        def helpers():
            names = (task.read_text() for task in Path("/proc/self/task").glob("*/comm"))
            return sum(name.strip() == "chainrule-team" for name in names)
        def copies():
            source = np.arange(1_000_000)
            assert _team.TEAM.wait_for_library()
            while helpers() < 3:
                time.sleep(0.01)
            for _ in range(20):
                target = np.zeros_like(source)
                assert _copy_together(target, source)
                assert (target == source).all()
        copies()
        if not (child := os.fork()):
            assert helpers() == 0
            copies()
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
