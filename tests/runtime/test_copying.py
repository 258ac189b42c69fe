"""Results that several threads copy."""

import sys
import threading

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule import from_callable
from chainrule._team import Team
from chainrule.runtime import _copying
from chainrule.runtime._copying import copy_into, write_pieces


@pytest.fixture(autouse=True, params=["alone", "together"])
def _any_size(request, monkeypatch):
    """Arrays of any size are large; with and without helpers."""
    if request.param == "together":
        team = request.getfixturevalue("own_team")
    else:
        monkeypatch.setattr("chainrule._team.processors", lambda: 1)
        team = Team()
    monkeypatch.setattr(_copying, "TEAM", team)
    monkeypatch.setattr(_copying, "_LARGE_BYTES", 0)


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
    monkeypatch.setattr(_copying, "_VERY_LARGE_BYTES", 50)
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


def test_references_to_what_was_lent_are_gone():
    target, source = np.zeros(100), np.ones(100)
    before = sys.getrefcount(target), sys.getrefcount(source)
    copy_into(target, source)
    assert (sys.getrefcount(target), sys.getrefcount(source)) == before
