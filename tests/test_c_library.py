"""Building our sources in C."""

import shutil
from pathlib import Path

import pytest

import chainrule
from chainrule._c_library import load_c_library

SOURCES = sorted(Path(chainrule.__file__).parent.rglob("*.c"))
build = load_c_library.__wrapped__


@pytest.fixture
def compiler():
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no compiler")
    return found


def test_sources_travel_with_the_package():
    assert {source.name for source in SOURCES} == {"_engine.c"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_sources_are_built_without_a_warning(source, compiler, tmp_path, monkeypatch):
    strict = tmp_path / "strict-cc"
    strict.write_text(f'#!/bin/sh\nexec {compiler} -Wall -Wextra -Werror "$@"\n')
    strict.chmod(0o755)
    monkeypatch.setenv("CC", str(strict))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build(source) is not None


def test_a_damaged_library_is_built_again(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "whole"))
    assert build(SOURCES[0]) is not None
    (library,) = (tmp_path / "whole").rglob("*.so")
    damaged = tmp_path / "damaged" / library.relative_to(tmp_path / "whole")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"damaged")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "damaged"))
    assert build(SOURCES[0]) is not None
    assert damaged.read_bytes() == library.read_bytes()


def test_where_nothing_can_be_built_there_is_none(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    caplog.set_level("INFO", logger="chainrule")
    assert build(SOURCES[0]) is None
    assert SOURCES[0].name in caplog.text
    assert not list(tmp_path.rglob("*.so"))
    assert not list(tmp_path.rglob("tmp*"))
    assert build(tmp_path / "missing.c") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC")
    assert build(SOURCES[0]) is None
