"""The dispatcher of pools in virtual time: counted steps and closed forms, no clock of this machine."""

from __future__ import annotations

import math

import pytest
from benchmarks._virtual_pool import CountedPlace, Situation, simulate


def looks_per_call(replicas, **settings):
    situation = Situation(replicas, calls=10_000, **settings)
    before = CountedPlace.looks
    outcome = simulate(situation, CountedPlace)
    # Each replica that is added is looked at, too.
    starting = CountedPlace.looks
    simulate(Situation(replicas, calls=1, **settings), CountedPlace)
    looks = starting - before - (CountedPlace.looks - starting)
    return looks / situation.calls, outcome


@pytest.mark.parametrize(
    "settings",
    [{"load": 0.5}, {"load": 1.5}, {"load": 0.8, "at_home": 0.5}, {"deaths_per_s": 0.05}],
    ids=str,
)
def test_a_call_takes_as_many_steps_with_ten_thousand_replicas(settings):
    few, _ = looks_per_call(100, **settings)
    many, outcome = looks_per_call(10_000, **settings)
    assert many <= 1.5 * few
    assert many < 60
    repeated = outcome.given - len(outcome.waits_s)
    assert 0 <= repeated <= outcome.deaths, "one replica is told of a call, once, unless it dies"


def test_waiting_times_are_those_of_the_theory():
    """Erlang's formula for calls that arrive at random at ten replicas which are busy for 80 %."""
    count, load, service_s = 10, 0.8, 0.01
    outcome = simulate(Situation(count, 200_000, load=load, service_s=service_s))
    offered = count * load
    last = offered**count / math.factorial(count) / (1 - load)
    share = last / (sum(offered**k / math.factorial(k) for k in range(count)) + last)
    expected_s = share * service_s / (count * (1 - load))
    found_s = sum(outcome.waits_s) / len(outcome.waits_s)
    assert found_s == pytest.approx(expected_s, rel=0.05)
    waited = sum(wait > 0 for wait in outcome.waits_s) / len(outcome.waits_s)
    assert waited == pytest.approx(share, rel=0.05)


def test_no_call_is_lost_while_replicas_die():
    outcome = simulate(
        Situation(20, 30_000, load=0.5, service_s=0.1, deaths_per_s=0.1, restart_s=1.0, at_home=0.5)
    )
    assert outcome.deaths > 100
    assert len(outcome.waits_s) == 30_000
    assert outcome.given > 30_000
