"""How many processors this process may use."""

import os

import pytest

from chainrule import _processors


@pytest.mark.parametrize(
    ("limit", "count"),
    [("max 100000", 8), ("150000 100000", 1), ("50000 100000", 1), ("400000 100000", 4), (None, 8)],
)
def test_a_container_may_have_less_than_the_machine(limit, count, tmp_path, monkeypatch):
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(_processors, "_CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert _processors.processors.__wrapped__() == count
