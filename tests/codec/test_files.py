"""Binref files: confined to what was granted, written whole or not at all."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from chainrule._codec import BinrefArray, BinrefWriter, Grants, decode_array, encode_array
from chainrule.errors import ChainruleError, DecodeError, NotGrantedError, StorageError


def reference(buffer, shape=(2,), dtype="float64", **data):
    return {
        "shape": list(shape),
        "dtype": dtype,
        "data": {"buffer": buffer, "encoding": "binref", **data},
    }


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    np.arange(4.0).tofile(inside / "a.bin")
    np.arange(4.0).tofile(inside / "sub" / "b:7.bin")
    np.arange(4.0).tofile(tmp_path / "secret.bin")
    (inside / "out.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "in.bin").symlink_to(inside / "a.bin")
    (inside / "up").symlink_to(tmp_path)
    (inside / "loop").symlink_to(inside / "loop")
    os.mkfifo(inside / "pipe")
    return inside


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        ("a.bin", [0, 1]),
        ("a.bin:16", [2, 3]),
        ("./a.bin:8", [1, 2]),
        ("in.bin:0", [0, 1]),
        ("sub/b:7.bin:8", [1, 2]),
    ],
)
def test_references_inside(folder, buffer, expected):
    array = decode_array(reference(buffer), grants=Grants(input_dir=folder))
    assert array.tolist() == expected
    assert not array.flags.writeable


@pytest.mark.parametrize(
    "buffer",
    [
        "/etc/passwd",
        "../secret.bin",
        "sub/../../secret.bin",
        "sub/../a.bin",
        "out.bin",
        "up/secret.bin",
        "pipe",
        "sub",
        ".",
        "loop",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "http://127.0.0.1:1/x",
        "s3://bucket/key",
        "memory://x",
        "/proc/self/environ",
        "a.bin\0",
        "a/" * 3000,
    ],
)
def test_references_outside(folder, buffer):
    with pytest.raises(NotGrantedError) as caught:
        decode_array(reference(buffer), grants=Grants(input_dir=folder))
    assert caught.value.code == "path_not_granted"
    assert "secret" not in str(caught.value)


def test_nothing_is_granted_by_default(folder):
    with pytest.raises(NotGrantedError):
        decode_array(reference("a.bin"))


@pytest.mark.parametrize(
    "buffer", ["a.bin:24", "a.bin:1000", "missing.bin", "x" * 300, "sub/missing.bin:3"]
)
def test_short_and_missing_files(folder, buffer):
    with pytest.raises(DecodeError):
        decode_array(reference(buffer), grants=Grants(input_dir=folder))


def test_a_compressed_reference_needs_its_size(folder):
    with pytest.raises(DecodeError, match="stored size"):
        decode_array(reference("a.bin:0", compression="lz4"), grants=Grants(input_dir=folder))


@pytest.mark.parametrize(
    ("url", "granted"),
    [
        ("https://host/data/x.bin", True),
        ("https://host/data/deep/x.bin", True),
        ("http://host/data/x.bin", False),
        ("https://host/database/x.bin", False),
        ("https://host.evil/data/x.bin", False),
        ("https://user@host/data/x.bin", False),
        ("https://host:99/data/x.bin", False),
        ("https://host/data/../x.bin", False),
        ("https://host/data/%2e%2e/x.bin", False),
    ],
)
def test_addresses_are_matched_by_parts(url, granted):
    grants = Grants(allowed_urls=("https://host/data/",))
    if granted:
        assert grants.check_url(url) == url
    else:
        with pytest.raises(NotGrantedError):
            grants.check_url(url)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/data/away.bin":
            self.send_response(302)
            self.send_header("Location", "/data/x.bin")
            self.end_headers()
            return
        content = np.arange(4.0).tobytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)

    def log_message(self, *args):
        pass


def test_allowed_addresses_are_read_without_following_redirects():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}/data/"
        grants = Grants(allowed_urls=(base,))
        assert decode_array(reference(base + "x.bin:8"), grants=grants).tolist() == [1, 2]
        for buffer in (base + "away.bin:0", base + "x.bin:24"):
            with pytest.raises(ChainruleError):
                decode_array(reference(buffer), grants=grants)
        server.shutdown()


def test_arrays_share_a_file_until_it_is_large(tmp_path):
    with BinrefWriter(tmp_path, run="run_7", max_file_size=100) as writer:
        arrays = [writer.write(np.full(8, i, np.float64)) for i in range(5)]
    # A new file starts once the current one is larger than the bound: 64, 128 | 64, 128 | 64 bytes.
    sizes = sorted(file.stat().st_size for file in (tmp_path / "run_7").iterdir())
    assert sizes == [64, 128, 128]
    assert all(array.buffer.startswith("run_7/") for array in arrays)
    for i, array in enumerate(arrays):
        assert array.load().tolist() == [i] * 8


def test_nothing_has_its_name_before_the_writer_is_closed(tmp_path):
    writer = BinrefWriter(tmp_path)
    array = writer.write(np.zeros(3))
    assert not [file for file in tmp_path.iterdir() if file.suffix == ".bin"]
    with pytest.raises(DecodeError):
        array.load()
    writer.close()
    writer.close()
    assert array.load().tolist() == [0, 0, 0]


def test_an_exception_leaves_nothing_behind(tmp_path):
    def interrupted():
        with BinrefWriter(tmp_path) as writer:
            writer.write(np.zeros(3))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_an_unused_writer_creates_nothing(tmp_path):
    with BinrefWriter(tmp_path / "absent"):
        pass
    assert not (tmp_path / "absent").exists()


def test_killed_while_writing_leaves_no_final_name(tmp_path):
    code = (
        "import os, signal, sys, numpy as np\n"
        "from chainrule._codec import BinrefWriter\n"
        "writer = BinrefWriter(sys.argv[1])\n"
        "writer.write(np.zeros(1000))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=300)
    assert [file.suffix for file in tmp_path.iterdir()] == [".part"]


def test_binref_array_is_forwarded_or_loaded(tmp_path):
    np.arange(4.0).tofile(tmp_path / "a.bin")
    array = BinrefArray.from_file("a.bin", (2,), "float64", folder=tmp_path, offset=8)
    forwarded = encode_array(array, encoding="binref")
    assert forwarded["data"] == {"buffer": "a.bin:8", "encoding": "binref"}
    assert decode_array(encode_array(array, encoding="base64")).tolist() == [1, 2]
    assert np.asarray(array).tolist() == [1, 2]
    with pytest.raises(DecodeError):
        BinrefArray.from_file("a.bin", (4,), "float64", folder=tmp_path, offset=8)
    with pytest.raises(NotGrantedError):
        BinrefArray.from_file("../a.bin", (4,), "float64", folder=tmp_path)


def test_binref_without_a_folder_says_so():
    with pytest.raises(ChainruleError) as caught:
        encode_array(np.zeros(2), encoding="binref")
    assert caught.value.code == "output_folder_missing"


@pytest.fixture(params=["full", "read-only"])
def broken_folder(request, tmp_path):
    """A tiny tmpfs that has no room, or a folder on one that is mounted read-only."""
    target = tmp_path / "mount"
    target.mkdir()
    options = "size=64k" if request.param == "full" else "ro"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(target)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False, timeout=300)
    except OSError:
        pytest.skip("no mount command")
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield request.param, target
    subprocess.run(["umount", str(target)], check=True, timeout=300)


def test_full_and_read_only_folders(broken_folder):
    kind, folder = broken_folder

    def write():
        with BinrefWriter(folder, run="run_1") as writer:
            writer.write(np.zeros(100))
            writer.write(np.zeros(100_000))

    with pytest.raises(StorageError) as caught:
        write()
    assert caught.value.code == {"full": "storage_full", "read-only": "storage_read_only"}[kind]
    assert caught.value.http_status == 507
    assert [file for file in folder.rglob("*") if file.is_file()] == []


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        BinrefWriter(tmp_path / "file").write(np.zeros(2))
