"""`progress`: reaches every listener, from anywhere in a call, and never decreases."""

import threading

import numpy as np
import pytest

from chainrule._progress import listening, steps
from chainrule.client import Component
from chainrule.runtime import Array, Differentiable, Float64, component, progress

Vector = Differentiable[Array[("n",), Float64]]


def heard(function, **options):
    reports = []
    with listening(lambda *report: reports.append(report), **options):
        function()
    return reports


def test_without_a_listener_nothing_happens():
    progress(0.5, "there is no listener")
    assert list(steps(range(3), 3)) == [0, 1, 2]


def test_reports_are_clipped_and_never_fall():
    def work():
        for k, fraction in enumerate((-1.0, 0.5, 0.25, 7.0)):
            progress(fraction, f"{k}")

    assert heard(work) == [(0.0, "0"), (0.5, "1"), (0.5, "2"), (1.0, "3")]


def test_what_nobody_can_see_is_dropped_but_not_the_end():
    def work():
        for k in range(1, 10_001):
            progress(k / 10_000)

    reports = heard(work)
    assert reports[0] == (1 / 10_000, "")
    assert reports[-1] == (1.0, "")
    assert len(reports) < 1000


def test_steps_within_steps():
    def inner(k):
        progress(0.5, f"inside {k}")
        return k

    def work():
        assert list(steps((inner(k) for k in range(2)), 2, "outer")) == [0, 1]

    assert heard(work) == [
        (0.25, "inside 0"), (0.5, "outer"), (0.75, "inside 1"), (1.0, "outer"),
    ]  # fmt: skip


@pytest.mark.parametrize("whole_process", [False, True])
def test_threads_of_the_author_are_heard_in_a_process_that_does_one_thing(whole_process):
    def work():
        thread = threading.Thread(target=progress, args=(0.5, "in a thread"))
        thread.start()
        thread.join()

    expected = [(0.5, "in a thread")] if whole_process else []
    assert heard(work, whole_process=whole_process) == expected


@component(derivatives="finite")
def chatty(x: Vector) -> Vector:
    """Says that it is done at each of its many evaluations."""
    progress(0.5, "evaluating")
    progress(1.0, "evaluated")
    return x**2


def test_a_finite_difference_jacobian_in_this_process():
    x = np.arange(1.0, 9.0)
    reports = []
    job = Component.from_api(chatty).submit("jacobian", {"x": x}, ["x"], ["result"])
    found = job.result(60, progress=lambda *report: reports.append(report))
    np.testing.assert_allclose(found["result"]["x"], np.diag(2 * x), rtol=1e-6, atol=1e-6)
    assert job.fraction == 1.0
    fractions = [fraction for fraction, _ in reports]
    assert fractions == sorted(fractions)
