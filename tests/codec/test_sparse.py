"""Sparse arrays against scipy and JAX, and through every format."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from chainrule._codec import SparseArray, decode_body, encode_body, flat_entries, media_type_of
from chainrule.errors import DecodeError, InputError, LimitError

DENSE = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 0.0]])


def test_dense_and_back():
    sparse = SparseArray.from_dense(DENSE)
    assert sparse.nnz == 2
    assert sparse.dtype == np.float64
    np.testing.assert_array_equal(sparse.todense(), DENSE)
    assert SparseArray.from_dense(np.float64(3)).todense() == 3.0
    assert SparseArray.from_dense(np.zeros((2, 0))).todense().shape == (2, 0)


def test_entries_at_the_same_place_add_up():
    assert SparseArray((2,), [[1], [1]], [2.0, 3.0]).todense().tolist() == [0, 5]


def test_scipy():
    matrix = scipy.sparse.random_array((5, 7), density=0.3, rng=np.random.default_rng(0))
    sparse = SparseArray.from_scipy(matrix.tocsr())
    np.testing.assert_array_equal(sparse.todense(), matrix.toarray())
    np.testing.assert_array_equal(sparse.to_scipy().toarray(), matrix.toarray())


def test_bcoo():
    import jax.experimental.sparse

    array = jax.experimental.sparse.BCOO.fromdense(DENSE, nse=4)
    sparse = SparseArray.from_bcoo(array)
    assert sparse.nnz == 2
    np.testing.assert_array_equal(sparse.todense(), DENSE)
    np.testing.assert_array_equal(sparse.to_bcoo().todense(), DENSE)
    with pytest.raises(InputError):
        SparseArray.from_bcoo(jax.experimental.sparse.BCOO.fromdense(DENSE, n_batch=1))


@pytest.mark.parametrize("format", ["json", "json+base64", "vnd.chainrule.frames"])
def test_through_every_format(format):
    sparse = SparseArray.from_dense(DENSE.astype(np.float32))
    body = b"".join(encode_body({"y": {"x": sparse}}, format=format))
    found = decode_body(body, media_type=media_type_of(format))["y"]["x"]
    assert isinstance(found, SparseArray)
    assert found.shape == (2, 3)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.todense(), DENSE)
    dense = decode_body(
        b"".join(encode_body([sparse], format=format, sparse=False)),
        media_type=media_type_of(format),
    )
    np.testing.assert_array_equal(dense[0], DENSE)


@pytest.mark.parametrize(
    ("shape", "indices", "values"),
    [
        ((2, 3), [[0, 3]], [1.0]),
        ((2, 3), [[-1, 0]], [1.0]),
        ((2, 3), [[0]], [1.0]),
        ((2, 3), [[0, 0]], [1.0, 2.0]),
        ((2, 3), [[0.5, 0]], [1.0]),
        ((2, 3), [[0, 0]], [[1.0]]),
        ((0,), [[0]], [1.0]),
    ],
)
def test_parts_that_do_not_fit(shape, indices, values):
    with pytest.raises(InputError) as caught:
        SparseArray(shape, indices, values)
    assert caught.value.code == "sparse_malformed"


def test_received_parts_that_do_not_fit():
    body = b"".join(encode_body(SparseArray.from_dense(DENSE), format="json"))
    with pytest.raises(DecodeError) as caught:
        decode_body(body.replace(b'"shape":[2,3]', b'"shape":[2,1]'))
    assert caught.value.code == "sparse_malformed"
    for old, new in [(b'"indices"', b'"rows"'), (b'"values":{', b'"values":[]}#{')]:
        with pytest.raises(DecodeError):
            decode_body(body.replace(old, new).split(b"#")[0])


def test_a_dense_form_that_would_be_too_large():
    with pytest.raises(LimitError):
        SparseArray((10**9, 10**9), [[1, 1]], [1.0]).todense(max_bytes=10**9)
    for format in ("json", "vnd.chainrule.frames"):
        with pytest.raises(LimitError):
            encode_body(SparseArray((10**9, 10**9), [[1, 1]], [1.0]), format=format, sparse=False)


def test_entries_of_a_flattened_array():
    repeated = SparseArray((2, 2), [[1, 1], [0, 1], [1, 1]], [1.0, 2.0, 3.0])
    places, values = flat_entries(repeated)
    assert (places.tolist(), values.tolist()) == ([1, 3], [2.0, 4.0])
    scalar = SparseArray((), np.zeros((2, 0), int), [1.0, 2.0])
    assert [part.tolist() for part in flat_entries(scalar)] == [[0], [3.0]]
    assert [part.tolist() for part in flat_entries(np.array([0.0, 5.0]))] == [[1], [5.0]]
