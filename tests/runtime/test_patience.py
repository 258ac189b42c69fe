"""Looking before sleeping: while it finds something always, in vain ever more rarely, alone never."""

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
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
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
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert wait(Patience(), CountedPoll(pipe[0]), 10) == 0
