"""Bytes for another process."""

import pytest

from chainrule._codec._frames import write_pieces


@pytest.mark.parametrize("sizes", [[], [0], [3], [1, 0, 5], [300, 1, 3]])
def test_pieces_lie_one_after_the_other(sizes):
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    target = bytearray(b"\xff" * (sum(sizes) + 2))
    assert write_pieces(target, map(memoryview, pieces)) == sum(sizes)
    assert target == b"".join(pieces) + b"\xff\xff"


def test_a_buffer_that_is_too_small_is_an_error():
    with pytest.raises(ValueError, match="memoryview"):
        write_pieces(bytearray(3), [b"four"])
