"""Files that are there whole, or not at all."""

import os

import pytest

from chainrule._files import whole_file, write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_takes_the_place_of_the_old_one(tmp_path, durable):
    path = tmp_path / "file"
    for content in ([b"old"], [b"n", memoryview(b"ew"), b""]):
        write_whole(path, content, durable=durable)
        assert path.read_bytes() == b"".join(content)
        assert os.listdir(tmp_path) == ["file"]


def test_until_then_the_old_one_is_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert temporary.parent == tmp_path
        assert temporary.match(".file.*.partial")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_nothing_is_left(tmp_path, error):
    def pieces():
        yield b"half"
        raise error

    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error):
        write_whole(path, pieces())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "file", [b""])


def test_two_writers_do_not_meet(tmp_path):
    path = tmp_path / "file"
    with whole_file(path) as one, whole_file(path) as other:
        assert one != other
        one.write_bytes(b"one")
        other.write_bytes(b"other")
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]
