"""Every Python block and every `sh` block of the README and of every page of the docs runs as a test.

The blocks of one page share a namespace and a folder, in order, as a reader would type them:

    ```python                    runs
    ```sh                        runs; every command has to succeed
    ```bash                      needs what a test does not have (a free port, a container engine, a cluster):
                                 its commands are parsed only (tests/project/test_docs.py)
    ```python title="beam.py"    is written to that file of the folder (in any language)
    ``` { .python title=… }      is a file of the repository that the page takes in by `--8<--`
    ```text title="Output"       is what the block before it printed; `…` stands for anything, and numbers
                                 with a point may differ by two units of the last digit shown

`make outputs` runs the pages and writes what they print now into their output blocks.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

_FENCES = RawFencedCodeBlockLexer(
    re.compile(r'(?P<language>\w+)(?: title="(?P<title>[^"]*)")?$\n', re.M)
)
_FOLDER, _PRINTED, _CHANGES = (
    "folder of the page",
    "printed by the last block",
    "outputs that changed",
)
_WRITES = "CHAINRULE_WRITE_OUTPUTS" in os.environ
_NUMBER = r"(-?\d+\.\d*(?:e[-+]\d+)?)"
_run_python = PythonEvaluator()


def _blocks(document):
    """The fenced blocks that a test does something with."""
    for region in _FENCES(document):
        language, title = region.lexemes["language"], region.lexemes["title"]
        region.parsed = region.lexemes["source"]
        if title == "Output":
            region.evaluator = _compare_output
        elif title:
            region.evaluator = _write_file
        elif language in ("python", "sh"):
            region.evaluator = _capture_python if language == "python" else _run_shell
        else:
            continue
        yield region


def _folder_of(example):
    """The folder of the page, which starts empty."""
    if _FOLDER not in example.namespace:
        example.namespace[_FOLDER] = tempfile.mkdtemp()
    return example.namespace[_FOLDER]


def _write_file(example):
    file = Path(_folder_of(example), example.region.lexemes["title"])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(example.parsed)


def _capture_python(example):
    printed = io.StringIO()
    with contextlib.chdir(_folder_of(example)), contextlib.redirect_stdout(printed):
        _run_python(example)
    example.namespace[_PRINTED] = printed.getvalue()


def _run_shell(example):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", str(example.parsed)],
        cwd=_folder_of(example), env={**os.environ, "PATH": path, "PYTHONPATH": modules},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    example.namespace[_PRINTED] = done.stdout
    return None if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr[-2000:]}"


def _compare_output(example):
    found, shown = (_lines(text) for text in (example.namespace[_PRINTED], example.parsed))
    if _agree(found, shown):
        return None
    if _WRITES:
        changes = example.namespace.setdefault(_CHANGES, [example.path])
        changes.append((example.region.start, example.region.end, found))
        return None
    return f"The block before prints:\n{found}\nThe page shows:\n{shown}\nRun `make outputs`."


def _lines(text):
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _agree(found, shown):
    """Other machines round otherwise: equal but for white space, `…`, and the last digits of numbers."""
    numbers = re.findall(_NUMBER, shown)
    pattern = re.escape(re.sub(_NUMBER, "\0", shown))
    for escaped, meaning in (("\0", _NUMBER), ("…", ".*"), (r"(\\\s)+", r"\s+")):
        pattern = re.sub(escaped, lambda _, meaning=meaning: meaning, pattern)
    match = re.fullmatch(pattern, found, re.DOTALL)
    return match is not None and all(map(_is_close, match.groups(), numbers))


def _is_close(found, shown):
    mantissa, _, exponent = shown.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(found) - float(shown)) <= 2.001 * unit


def _clean_up(namespace):
    """A page may switch to double precision; the tests that follow in this process start in single.

    Compiled programs go: those of all pages would take gigabytes.
    """
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_x64", False)
        sys.modules["jax"].clear_caches()
    if _FOLDER in namespace:
        shutil.rmtree(namespace[_FOLDER])
    if _CHANGES in namespace:
        page, *changes = namespace[_CHANGES]
        text = Path(page).read_text()
        for start, end, found in reversed(changes):
            text = f'{text[:start]}```text title="Output"\n{found}\n```{text[end:]}'
        Path(page).write_text(text)


pytest_collect_file = Sybil(
    parsers=[SkipParser(), _blocks],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    teardown=_clean_up,
).pytest()
