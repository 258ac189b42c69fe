"""Looking before sleeping: while it finds something always, in vain ever more rarely, alone never.

And on a processor of its own: who finds others on its processor again and again steps aside.
"""

import os
import select

import pytest

from chainrule.runtime._samehost import Patience, _patience


class CountedPoll:
    """A poll of one end of a pipe that counts how often it is asked."""

    def __init__(self, descriptor):
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self.count = 0

    def poll(self, timeout):
        self.count += 1
        return self._poll.poll(timeout)


@pytest.fixture
def pipe(monkeypatch):
    monkeypatch.setattr(f"{Patience.__module__}.processors", lambda: 2)
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def wait(patience, poll, times):
    for _ in range(times):
        patience.look(poll)
        patience.end()
    return poll.count


def test_what_comes_within_a_moment_is_looked_for_every_time(pipe, monkeypatch):
    monkeypatch.setattr(_patience, "_MOMENT_S", 60)
    os.write(pipe[1], b"there")
    poll = CountedPoll(pipe[0])
    assert Patience().look(poll) == [(pipe[0], select.POLLIN)]
    assert wait(Patience(), poll, 10) == 11


def test_in_vain_it_is_tried_ever_more_rarely_and_again(pipe, monkeypatch):
    monkeypatch.setattr(_patience, "_MOMENT_S", 0)  # whatever the wait, it was longer
    patience, poll = Patience(), CountedPoll(pipe[0])
    assert wait(patience, poll, 1000) == 21  # at 0, 2, 5, 10, 19, 36, 69, 134, and then every 65
    monkeypatch.setattr(_patience, "_MOMENT_S", 60)
    os.write(pipe[1], b"there")
    before = poll.count
    assert wait(patience, poll, 10) == before + 9  # the first is slept through, and short


def test_one_processor_is_left_to_the_other_side(pipe, monkeypatch):
    monkeypatch.setattr(f"{Patience.__module__}.processors", lambda: 1)
    assert wait(Patience(), CountedPoll(pipe[0]), 10) == 0


@pytest.fixture
def steps(pipe, monkeypatch):
    """Counts steps aside; every wait sees one look in vain before something comes."""
    monkeypatch.setattr(_patience, "_MOMENT_S", 60)
    taken = []
    monkeypatch.setattr(_patience, "_leave_processor", lambda: taken.append(True))
    monkeypatch.setattr(os, "sched_yield", lambda: os.write(pipe[1], b"x"))
    return taken


def every_wait_ends_with_a_turn(monkeypatch):
    monkeypatch.setattr(_patience, "_SHORTEST_TURN_S", -1.0)
    monkeypatch.setattr(_patience, "_LONGEST_TURN_S", 60.0)


def converse(patience, pipe, times):
    poll = CountedPoll(pipe[0])
    for _ in range(times):
        patience.look(poll)
        patience.end()
        os.read(pipe[0], 1)


def test_a_processor_with_others_on_it_is_left_ever_more_rarely(pipe, steps, monkeypatch):
    every_wait_ends_with_a_turn(monkeypatch)
    monkeypatch.setattr(_patience, "_SETTLED_S", 60)
    patience = Patience(steps_aside=True)
    converse(patience, pipe, 100)
    assert len(steps) == 5  # after 4, 8, 16, 32 and 64 waits


def test_a_step_that_helped_for_a_while_may_follow_at_once(pipe, steps, monkeypatch):
    every_wait_ends_with_a_turn(monkeypatch)
    monkeypatch.setattr(_patience, "_SETTLED_S", -1.0)  # however short ago, it was longer
    converse(Patience(steps_aside=True), pipe, 100)
    assert len(steps) == 25


@pytest.mark.parametrize(
    ("shortest", "longest", "steps_aside"),
    [(60.0, 90.0, True), (-2.0, -1.0, True), (-1.0, 60.0, False)],
    ids=["alone", "long turns", "not asked to"],
)
def test_who_has_no_reason_to_leave_stays(pipe, steps, monkeypatch, shortest, longest, steps_aside):
    monkeypatch.setattr(_patience, "_SHORTEST_TURN_S", shortest)
    monkeypatch.setattr(_patience, "_LONGEST_TURN_S", longest)
    converse(Patience(steps_aside=steps_aside), pipe, 100)
    assert steps == []


def test_leaving_a_processor_keeps_the_choice_of_all():
    before = os.sched_getaffinity(0)
    _patience._leave_processor()
    assert os.sched_getaffinity(0) == before
