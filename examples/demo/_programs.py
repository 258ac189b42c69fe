"""Starting the three programs of the demo, each its own way."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from chainrule import Component
from chainrule.runtime import Array, Differentiable, Float64, from_command
from examples._running import served

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Programs:
    """Handles to the running programs, and how the compiled one came to be."""

    layout: Any
    heat: Any
    reliability: Any
    compiler: str
    url: str


@contextlib.contextmanager
def started() -> Iterator[Programs]:
    """All three programs, stopped again at the end, also after an error."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chainrule-demo-")))
        command, compiler = _reliability_command(folder)
        url = stack.enter_context(served(HERE / "layout" / "component.py"))
        yield Programs(
            layout=stack.enter_context(Component.from_url(url)),
            heat=stack.enter_context(Component.from_source(HERE / "heat" / "component.py")),
            reliability=_reliability(command),
            compiler=compiler,
            url=url,
        )


class _Temperatures(BaseModel):
    temperatures: Differentiable[Array[("chip",), Float64]]


class _Rates(BaseModel):
    rates: Differentiable[Array[("chip",), Float64]]


def _reliability(command: list[str]) -> Any:
    return from_command(
        [*command, "{input}", "{output}"],
        name="reliability",
        inputs=_Temperatures,
        outputs=_Rates,
        derivatives="finite",
    )


def _reliability_command(folder: Path) -> tuple[list[str], str]:
    """The C program when there is a compiler, its Python twin otherwise."""
    source = HERE / "reliability" / "reliability.c"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return [sys.executable, str(source.with_suffix(".py"))], "none found: the Python twin runs"
    program = folder / "reliability"
    subprocess.run([compiler, "-O2", str(source), "-o", str(program), "-lm"], check=True)
    return [str(program)], f"compiled with {Path(compiler).name}"
