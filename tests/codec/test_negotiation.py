"""`Accept` headers, with the answers the peer gives."""

from __future__ import annotations

import pytest

from chainrule._codec import Negotiated, NotAcceptableError, negotiate


@pytest.mark.parametrize(
    ("accept", "format", "compression"),
    [
        (None, "json", None),
        ("  ", "json", None),
        ("*/*", "json", None),
        ("application/*; gpu_transport=none", "json", None),
        ("application/json", "json", None),
        ("text/json", "json", None),
        ("Application/JSON+Base64; gpu_transport=none", "json+base64", None),
        ("application/json+binref;compression=lz4", "json+binref", "lz4"),
        ('application/json+base64;compression="lz4"', "json+base64", "lz4"),
        ("application/vnd.chainrule.frames;compression=zstd", "vnd.chainrule.frames", "zstd"),
        ("application/xml, application/json+base64;q=0.1", "json+base64", None),
        ("application/json;q=0.5, application/json+base64;q=0.9", "json+base64", None),
        ("application/json;q=0.9, application/json+base64;q=0.9", "json", None),
        ("application/json;q=nonsense, application/json+base64;q=0.1", "json+base64", None),
        ("application/json;q=0", "json", None),
        ("application/json;gpu_transport=cuda_ipc, application/json+base64", "json+base64", None),
        ("application/json+base64;compression=zstd, */*", "json", None),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "json", None),
    ],
)
def test_what_is_chosen(accept, format, compression):
    chosen = negotiate(accept)
    assert (chosen.format, chosen.compression) == (format, compression)
    assert chosen.media_type == f"application/{format}"


def test_configured_defaults():
    chosen = negotiate("*/*", default_format="json+base64", default_compression="lz4")
    assert chosen == Negotiated("json+base64", "lz4")
    assert negotiate("*/*;compression=none", default_compression="lz4").compression is None


def test_sparse_is_sent_to_those_who_ask():
    assert not negotiate("application/json").sparse
    assert negotiate("application/json;sparse=coo").sparse
    assert negotiate("application/vnd.chainrule.frames").sparse


@pytest.mark.parametrize(
    "accept",
    ["application/xml", "image/png;q=1", "application/json;compression=gzip", ",;,", "json2"],
)
def test_what_cannot_be_produced(accept):
    with pytest.raises(NotAcceptableError) as caught:
        negotiate(accept)
    assert caught.value.http_status == 406
    assert caught.value.details["available_compressions"] == ["none", "lz4"]
    assert "json" in caught.value.details["available_formats"]
