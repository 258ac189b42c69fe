from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chainrule._content_store import SharedFolder, content_digest
from chainrule.errors import InputError
from chainrule.runtime import _residuals
from chainrule.runtime._residuals import ResidualStore, own, same_content, set_jax_vjp_cache_size

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int8, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(st.lists(arrays, max_size=3))
def test_equal_content_has_equal_digest(values):
    copies = [np.array(value) for value in values]
    assert content_digest(values) == content_digest(copies)
    assert same_content(values, copies)


@given(arrays)
def test_layout_in_memory_does_not_matter(value):
    assert content_digest([value]) == content_digest([np.array(value, order="F")])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(4, np.float32), np.zeros(2)),
        (np.array(0.0), np.array(-0.0)),
        (np.arange(3), np.array([0, 1, 3])),
    ],
)
def test_different_content_is_told_apart(left, right):
    assert content_digest([left]) != content_digest([right])
    assert not same_content([left], [right])


def test_nan_is_equal_to_itself():
    assert same_content([np.array([np.nan])], [np.array([np.nan])])


def test_a_change_that_the_digest_does_not_sample_is_a_miss():
    large = np.zeros(1 << 20)
    cache = ResidualStore(2)
    cache.keep("f", own([large]), "residuals", 0)
    assert cache.find("f", [large.copy()]) == "residuals"
    for index in range(700, 1400, 7):
        other = large.copy()
        other[index] = 1.0
        assert cache.find("f", [other]) is None


def test_a_collision_never_returns_another_points_residuals(monkeypatch):
    monkeypatch.setattr(_residuals, "content_digest", lambda arrays: b"same")
    cache = ResidualStore(4)
    cache.keep("f", (np.zeros(3),), "at zero", 0)
    assert cache.find("f", [np.ones(3)]) is None
    assert cache.find("f", [np.zeros(3)]) == "at zero"


def test_programs_are_told_apart():
    cache = ResidualStore(4)
    cache.keep("f", (np.zeros(3),), "f", 0)
    assert cache.find("g", [np.zeros(3)]) is None


def test_bounded_by_number_and_by_bytes():
    cache = ResidualStore(2, max_bytes=1000)
    for value in range(3):
        cache.keep("f", (np.full(1, float(value)),), value, 0)
    assert len(cache) == 2
    assert cache.find("f", [np.zeros(1)]) is None
    cache.keep("f", (np.full(1, 7.0),), "large", 990)
    assert len(cache) == 1
    cache.keep("f", (np.full(1, 8.0),), "too large", 2000)
    assert cache.find("f", [np.full(1, 8.0)]) is None
    assert cache.find("f", [np.full(1, 7.0)]) == "large"


def test_caller_may_change_its_arrays():
    x = np.zeros(3)
    cache = ResidualStore(1)
    cache.keep("f", own([x]), "at zero", 0)
    x[:] = 1.0
    assert cache.find("f", [x]) is None
    assert cache.find("f", [np.zeros(3)]) == "at zero"


def test_many_threads():
    cache = ResidualStore(8)

    def work(value):
        point = np.full(100, float(value % 16))
        cache.keep("f", own([point]), value % 16, 10)
        return cache.find("f", [point]) in (None, value % 16)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(500)))
    assert len(cache) <= 8


def test_size_must_not_be_negative():
    with pytest.raises(InputError):
        set_jax_vjp_cache_size(-1)


@pytest.mark.parametrize("bounds", [{"size": -1}, {"size": 2.5}, {"size": "3"}, {"max_bytes": -1}])
def test_bounds_that_are_no_bounds(bounds):
    with pytest.raises(InputError, match="must be an integer of 0 or more") as caught:
        set_jax_vjp_cache_size(**{"size": 1, **bounds})
    assert caught.value.code == "bad_cache_size"


def test_residuals_that_cannot_be_pickled_stay_where_they_are(tmp_path, caplog):
    store, other = (ResidualStore(shared=SharedFolder(tmp_path, max_bytes=1000)) for _ in range(2))
    store.share("a", lambda: None)
    assert other.find_shared("a") is None
    assert "cannot be pickled" in caplog.text
    store.share("b", np.arange(3))
    np.testing.assert_array_equal(other.find_shared("b"), np.arange(3))
