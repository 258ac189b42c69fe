"""Which of many servers gets a call: the rules alone, without threads, clocks or servers."""

import threading
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.client._pool import (
    MAX_FAILURES,
    Assignment,
    Call,
    LeastBusy,
    Place,
    TwoChoices,
)
from chainrule.client._server_keeping import Agenda
from chainrule.client._servers import Rendezvous

HANG_S = 120


class CountedPlace(Place):
    """Counts how often anything of it is looked at."""

    looks = 0

    def __getattribute__(self, name):
        CountedPlace.looks += 1
        return super().__getattribute__(name)


def servers(count, depth=4, choice=None, kind=Place):
    choice = TwoChoices(Random(0)) if choice is None else choice
    assignment = Assignment(depth, 0.0, choice=choice)
    found = [kind(str(number)) for number in range(count)]
    for place in found:
        assignment.add(place)
        assignment.mark_up(place, 0.0)
    return assignment, found


def test_of_two_choices_the_less_busy_one_is_taken():
    assignment, (a, b) = servers(2)
    for _ in range(6):
        assignment.arrive(Call(), 0.0)
        assert abs(a.in_flight - b.in_flight) <= 1
    assert (a.in_flight, b.in_flight) == (3, 3)


def test_two_choices_are_far_better_than_one():
    """1000 calls at once on 1000 servers: a server has at most a few, where chance alone gives it more."""
    assignment, found = servers(1000, depth=32)
    draw, alone = Random(1), Counter()
    for _ in range(1000):
        assignment.arrive(Call(), 0.0)
        alone[draw.randrange(1000)] += 1
    # Theory: about log log n / log 2 + 1 with two choices, log n / log log n with one.
    assert max(place.in_flight for place in found) <= 4 < max(alone.values())


def test_callers_that_know_nothing_of_each_other_do_not_choose_the_same_server():
    firsts = Counter(
        servers(10, choice=TwoChoices(Random(k)))[0].arrive(Call(), 0.0).id for k in range(200)
    )
    assert len(firsts) == 10
    assert max(firsts.values()) < 50


def test_a_call_that_was_lost_goes_to_another_server():
    assignment, (a, b) = servers(2)
    for _ in range(3):
        assert assignment.arrive(Call(avoid="0"), 0.0) is b
    assignment.mark_lost(b, 0.0)
    assert assignment.arrive(Call(avoid="0"), 0.0) is a


def steps_per_call(count, kind, prepare=lambda assignment, found: None, **wanted):
    assignment, found = servers(count, choice=kind(), kind=CountedPlace)
    prepare(assignment, found)
    before = CountedPlace.looks
    for _ in range(50):
        call = Call(**wanted)
        assignment.arrive(call, 0.0)
        if call.place is not None:
            assignment.note_answer(call.place, 0.0)
            assignment.release(call, 0.0)
        else:
            assignment.leave(call, 0.0)
    return (CountedPlace.looks - before) / 50


def fill(assignment, found):
    for _ in range(4 * len(found)):
        assignment.arrive(Call(), 0.0)


def eject_some(assignment, found):
    for place in found[: len(found) // 2]:
        for _ in range(MAX_FAILURES):
            assignment.note_failure(place, 0.0)


@pytest.mark.parametrize("kind", [LeastBusy, lambda: TwoChoices(Random(0))], ids=["least", "two"])
@pytest.mark.parametrize("wanted", [{}, {"prefer": "7"}, {"avoid": "7"}, {"alone": True}], ids=str)
@pytest.mark.parametrize("prepare", [lambda a, f: None, fill, eject_some])
def test_a_call_costs_the_same_with_ten_thousand_servers(kind, wanted, prepare):
    few = steps_per_call(100, kind, prepare, **wanted)
    assert steps_per_call(10_000, kind, prepare, **wanted) <= 1.5 * few


def test_servers_that_go_and_come_cost_the_same_among_ten_thousand():
    def steps(count):
        assignment, found = servers(count, kind=CountedPlace)
        before = CountedPlace.looks
        for place in found[:50]:
            assignment.turn_away(place, 0.0)
            assignment.reopen(place, 0.0)
            for _ in range(MAX_FAILURES):
                assignment.note_failure(place, 0.0)
            assignment.mark_lost(place, 0.0)
            assignment.mark_up(place, 0.0)
        for place in found[:50]:
            assignment.remove(place, 0.0)
        return CountedPlace.looks - before

    assert steps(10_000) <= 1.5 * steps(100)


def test_a_server_that_turns_calls_away_has_fewer_at_once_and_then_more_again():
    assignment, (a,) = servers(1, depth=8)
    first, waits = Call(), Call()
    assignment.arrive(first, 0.0)
    assert assignment.turn_away(a, 0.0)
    assert not assignment.turn_away(a, 0.0), "calls that were sent together count once"
    assert (a.limit, a.state) == (4, "resting")
    assert assignment.arrive(waits, 0.0) is None
    assignment.release(first, 1.0)
    assert waits.place is None, "it rests"
    assignment.reopen(a, 2.0)
    assert waits.place is a
    for answers in range(1, 5):
        assignment.note_answer(a, 3.0)
        assert a.limit == (4 if answers < 4 else 5), (
            "one more after as many answers as it has room for"
        )
    for _ in range(1000):
        assignment.note_answer(a, 3.0)
    assert a.limit == 8, "never more than at first"
    for _ in range(5):
        assignment.turn_away(a, 4.0)
        assignment.reopen(a, 5.0)
    assert a.limit == 1, "it is always tried again"


def test_calls_for_a_server_that_rests_go_elsewhere():
    assignment, (a, b) = servers(2, depth=1)
    assert assignment.arrive(Call("0"), 0.0) is a
    assert assignment.arrive(Call("1"), 0.0) is b
    waits = Call("0", insists=True)
    assignment.arrive(waits, 0.0)
    assignment.turn_away(a, 0.0)
    (busy,) = [place for place in (b,) if place.in_flight]
    over = Call()
    over.place = busy
    assignment.release(over, 1.0)
    assert waits.place is b


def test_failures_count_only_in_a_row():
    assignment, (a, *_) = servers(4)
    for _ in range(10):
        for _ in range(MAX_FAILURES - 1):
            assert not assignment.note_failure(a, 0.0)
        assignment.note_answer(a, 0.0)
    assert [assignment.note_failure(a, 0.0) for _ in range(MAX_FAILURES)][-1]
    assert (a.state, assignment.up) == ("ejected", 3)
    assignment.mark_up(a, 1.0)
    assert (a.state, assignment.up, a.failures) == ("idle", 4, 0)


def test_one_server_alone_is_never_ejected():
    assignment, (a,) = servers(1)
    assert not any(assignment.note_failure(a, 0.0) for _ in range(10))
    assert assignment.arrive(Call(), 0.0) is a


def test_ejected_servers_are_used_again_when_the_others_go():
    assignment, (a, b, c, d) = servers(4)
    for place in (a, b):
        for _ in range(MAX_FAILURES):
            assignment.note_failure(place, 0.0)
    assert list(assignment.ejected) == [a, b]
    waits = [Call() for _ in range(9)]
    for call in waits:
        assignment.arrive(call, 0.0)
    assert waits[-1].place is None
    assignment.mark_lost(c, 1.0)
    assert list(assignment.ejected) == [b], "the one that was ejected first"
    assert waits[-1].place is a
    assignment.mark_lost(d, 1.0)
    assert not assignment.ejected or len(assignment.ejected) <= assignment.up


ACTIONS = ["up", "lost", "fail", "answer", "turn away", "reopen", "remove", "arrive", "release"]


@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), max_size=80), st.integers(1, 3)
)
def test_whatever_happens_the_rules_hold(actions, depth):
    """No server has more calls than it may, at most half are ejected, and no call waits without need."""
    assignment, found = servers(6, depth=depth)
    calls = []
    for now, (action, number) in enumerate(actions):
        place = found[number]
        if action == "arrive":
            calls.append(Call(prefer=str(number) if number % 2 else None))
            assignment.arrive(calls[-1], now)
        elif action == "release":
            running = [call for call in calls if call.place is not None]
            if running:
                calls.remove(running[number % len(running)])
                assignment.release(running[number % len(running)], now)
        else:
            {
                "up": assignment.mark_up,
                "lost": assignment.mark_lost,
                "fail": assignment.note_failure,
                "answer": assignment.note_answer,
                "turn away": assignment.turn_away,
                "reopen": assignment.reopen,
                "remove": assignment.remove,
            }[action](place, now)
        assert len(assignment.ejected) <= max(assignment.up, 0)
        assert assignment.up == sum(place.is_up for place in assignment.places.values())
        assert all(place.in_flight <= depth for place in found)
        if any(place.takes_calls and place.in_flight < place.limit for place in found):
            assert not assignment.waiting
        assert {call for call in calls if call.place is None} == assignment.waiting


def test_content_moves_only_from_the_server_that_goes():
    ids = [f"http://10.0.0.{k}:8000" for k in range(20)]
    content = [b"%d" % k for k in range(2000)]
    before = {key: Rendezvous(ids).home(key) for key in content}
    assert max(Counter(before.values()).values()) < 200
    after = Rendezvous([id for id in reversed(ids) if id != ids[3]])
    for key in content:
        if before[key] != ids[3]:
            assert after.home(key) == before[key]
    assert Rendezvous([]).home(b"1") is None


def test_few_threads_do_what_is_due_however_much_that_is():
    agenda, gate, done = Agenda(), threading.Event(), threading.Semaphore(0)
    before = threading.active_count()

    def look():
        gate.wait(HANG_S)
        done.release()

    for _ in range(200):
        agenda.after(0.0, look)
    assert threading.active_count() - before <= 8
    gate.set()
    for _ in range(200):
        assert done.acquire(timeout=HANG_S)
    agenda.after(0.01, done.release)
    assert done.acquire(timeout=HANG_S), "a later one too"
    agenda.close()
    agenda.after(0.0, done.release)
    assert not done.acquire(timeout=0.05)
