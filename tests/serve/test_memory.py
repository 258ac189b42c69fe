"""How much memory small bodies can make a server use: measured, as the peak of its processes."""

from __future__ import annotations

import contextlib
import gzip
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import zstandard

from chainrule._codec import FRAMES_MEDIA_TYPE, Limits, decode_body, encode_frames
from chainrule._codec._frames import PREFIX, padding
from chainrule.errors import LimitError
from chainrule.runtime import ComponentConfig
from chainrule.serve._merging import pack_calls, unpack_replies
from chainrule.serve.internal import Answerer, Call

HERE = Path(__file__).parent
LIMIT = 24 << 20


def processes(served):
    server = psutil.Process(served.process.pid)
    return [server, *server.children(recursive=True)]


@contextlib.contextmanager
def growth_below(served, nbytes):
    """What runs inside makes the peak of all processes of a server grow by less than so many bytes."""
    found = processes(served)
    for process in found:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the peak is what there is now
    before = sum(map(peak, found))
    yield
    grown = sum(map(peak, found)) - before
    assert grown < nbytes, f"{grown / 2**20:.0f} MiB"


def peak(process):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def numbers(item, nbytes, more=b""):
    count = nbytes // (len(item) + 1)
    return b'{"inputs": {' + more + b'"x": [' + (item + b",") * (count - 1) + item + b"]}}"


def wide_text(nbytes):
    return b'{"inputs": {"x": [1.0], "action": "' + b"a" * nbytes + '😀"}}'.encode()


TEXTS = {
    "small integers": numbers(b"1", LIMIT // 2),
    "floats": numbers(b"1.5", LIMIT // 2),
    "lists": numbers(b"[]", LIMIT // 4),
    "objects": numbers(b'{"a":1}', LIMIT // 4),
    "wide text": wide_text(LIMIT // 2),
    "wide text, escaped": wide_text(LIMIT // 2).decode().encode("ascii", "backslashreplace")
    .replace(b"\\U0001f600", b"\\ud83d\\ude00"),
}  # fmt: skip
COMPRESS = {"gzip": lambda text: gzip.compress(text, 1), "zstd": zstandard.compress}


@pytest.fixture(scope="module", params=[0, 2], ids=["thread", "processes"])
def frugal(request, start_server):
    workers = request.param
    served = start_server(workers=workers, max_inflight_bytes=LIMIT * max(1, workers))
    served.apply()
    return served


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("name", TEXTS)
def test_compressed_text(frugal, name, encoding):
    body = COMPRESS[encoding](TEXTS[name])
    assert len(body) < 1 << 20
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    with growth_below(frugal, 3 * LIMIT):
        for answer in at_once(frugal, "/apply", body, headers):
            assert answer.status == 413, answer.body[:300]
            assert answer.problem["code"] == "too_many_values"
            assert "--max-expanded-bytes" in answer.problem["message"]


def test_the_largest_text_that_is_accepted(frugal):
    # The text is there twice, as it came and parsed, and every number takes 48 bytes.
    body = zstandard.compress(numbers(b"1.5", 4 * (LIMIT // 56 - 100)))
    headers = {"Content-Type": "application/json", "Content-Encoding": "zstd"}
    with growth_below(frugal, 4 * LIMIT):
        assert [answer.status for answer in at_once(frugal, "/apply", body, headers)] == [200] * 4


def test_compressed_text_of_a_job(frugal, wait_until):
    body = zstandard.compress(TEXTS["small integers"])
    headers = {"Content-Type": "application/json", "Content-Encoding": "zstd"}
    with growth_below(frugal, 3 * LIMIT):
        ids = [answer.tree["id"] for answer in at_once(frugal, "/apply?wait=false", body, headers)]
        for id in ids:
            wait_until(lambda id=id: frugal.get(f"/jobs/{id}").tree["state"] == "failed")
            assert frugal.get(f"/jobs/{id}").tree["error"]["code"] == "too_many_values"


@pytest.mark.parametrize("compression", ["lz4", "zstd", "whole body"])
def test_compressed_small_integers_that_become_floats(frugal, compression):
    inputs = {"inputs": {"x": np.zeros(LIMIT // 4, np.int8)}}
    is_whole = compression == "whole body"
    body = bytes(encode_frames(inputs, compression=None if is_whole else compression))
    body = zstandard.compress(body) if is_whole else body
    encoding = "zstd" if is_whole else "identity"
    headers = {"Content-Type": FRAMES_MEDIA_TYPE, "Content-Encoding": encoding}
    with growth_below(frugal, LIMIT):
        for answer in at_once(frugal, "/apply", body, headers):
            assert answer.problem["code"] == "expansion_too_large"


def test_calls_that_are_merged_share_what_one_may_expand_to(tmp_path):
    limits = Limits(max_expanded_bytes=40_000)
    source = f"{HERE / 'batching_component.py'}:anything"
    answerer = Answerer.load(source, ComponentConfig(limits=limits))
    for count, is_merged in ((100, True), (300, False)):
        trace = tmp_path / f"{count}.txt"
        text = numbers(b"1.5", 4 * count, b'"trace": "%s", ' % bytes(trace))
        kind = {"content_type": "application/json", "content_encoding": "zstd"}
        calls = [Call("apply", zstandard.compress(text), **kind)] * 4
        reply = answerer.answer(Call("apply", pack_calls(calls), merged=True))
        replies = unpack_replies(b"".join(reply.pieces))
        assert [one.status for one in replies] == [200] * 4
        shapes = trace.read_text().splitlines()
        assert shapes == ([f"(4, {count})"] if is_merged else [f"({count},)"] * 4)


def test_arrays_that_share_the_bytes_of_a_body():
    header = b'{"a":{"$array":["float64",[1000],0,8000]}}'
    for count, is_allowed in ((1, True), (3, True), (4, False)):
        shared = b'{"x":[' + b",".join([header] * count) + b"]}"
        message = with_header(bytes(encode_frames({"a": np.ones(1000)})), shared)
        if is_allowed:
            tree = decode_body(
                message, media_type=FRAMES_MEDIA_TYPE, limits=Limits(max_expanded_bytes=16_100)
            )
            assert [one["a"].sum() for one in tree["x"]] == [1000] * count
            continue
        with pytest.raises(LimitError) as caught:
            decode_body(
                message, media_type=FRAMES_MEDIA_TYPE, limits=Limits(max_expanded_bytes=16_100)
            )
        assert caught.value.code == "expansion_too_large"


def with_header(message, header):
    """The frames message with the same data and another header."""
    magic, version, reserved, length, _ = PREFIX.unpack_from(message)
    start = PREFIX.size + length
    data = message[start + padding(start) :]
    start = PREFIX.size + len(header)
    total = start + padding(start) + len(data)
    prefix = PREFIX.pack(magic, version, reserved, len(header), total)
    return (prefix + header).ljust(start + padding(start), b"\0") + data


def at_once(served, path, body, headers, count=4):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(served.request("POST", path, body, headers)))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == count
    return answers


def test_an_answer_that_is_not_taken_yet_keeps_its_memory(any_served):
    """The answers are larger than what the system buffers, and the first is read after all others."""
    first, others = np.full(2_000_000, 1.0), [np.full(2_000_000, float(i)) for i in range(2, 8)]
    post_frames(any_served, others[0])  # from now on a room is offered for answers of this size
    waiting = ask_frames(any_served, first)
    response = waiting.getresponse()
    for x in others:
        np.testing.assert_array_equal(post_frames(any_served, x), 2 * x)
    with contextlib.closing(waiting):
        y = decode_body(response.read(), media_type=FRAMES_MEDIA_TYPE)["y"]
    np.testing.assert_array_equal(y, 2 * first)


def test_callers_who_leave_do_not_mix_the_bodies_of_others(served):
    def calls(seed):
        random = np.random.default_rng(seed)
        for turn in range(8):
            x = random.random(int(random.integers(5_000, 200_000)))
            if turn % 3:
                np.testing.assert_array_equal(post_frames(served, x), 2 * x)
            else:
                ask_frames(served, x).close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))


def ask_frames(served, x):
    connection = served.connect()
    headers = {"Content-Type": FRAMES_MEDIA_TYPE, "Accept": FRAMES_MEDIA_TYPE}
    connection.request("POST", "/apply", bytes(encode_frames({"inputs": {"x": x}})), headers)
    return connection


def post_frames(served, x):
    with contextlib.closing(ask_frames(served, x)) as connection:
        return decode_body(connection.getresponse().read(), media_type=FRAMES_MEDIA_TYPE)["y"]


def test_memory_of_a_body_is_used_for_the_next_one(start_server):
    """Pages that the system had to find anew, in place of the time that this takes."""
    served = start_server(workers=1)
    body = b"".join(encode_frames({"inputs": {"x": np.ones(1_000_000)}}).pieces)
    headers = {"Content-Type": FRAMES_MEDIA_TYPE, "Accept": FRAMES_MEDIA_TYPE}

    def ask(count):
        for _ in range(count):
            assert served.request("POST", "/apply", body, headers).status == 200

    ask(5)
    before = page_faults(served.process.pid)
    ask(10)
    pages = len(body) // resource.getpagesize()
    assert page_faults(served.process.pid) - before < 10 * pages
    served.stop()


def page_faults(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7])  # minflt
