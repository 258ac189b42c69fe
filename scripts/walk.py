"""Print the modules that a request, a gradient and a Jacobian really enter, in the order in which they do.

    python scripts/walk.py             print the ways
    python scripts/walk.py --write     write them into docs/explanation/architecture.md

A test (`tests/project/test_walk.py`) compares that page with what this script finds, so that a maintainer can
trust the page. Every way is walked once to warm up and then once with a profiler that notes which module of
Chainrule each called function belongs to. The second walk is what happens in every call; what only the first
does (tracing, compiling, loading) is listed too where the page says so.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import http.client
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "chainrule"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"

COMPONENT = """\
import numpy as np
from pydantic import BaseModel

from chainrule.runtime import Array, Differentiable, Float64


class InputSchema(BaseModel):
    x: Differentiable[Array[("n",), Float64]]


class OutputSchema(BaseModel):
    y: Differentiable[Array[("n",), Float64]]


def apply(inputs: InputSchema) -> OutputSchema:
    return OutputSchema(y=np.sin(inputs.x))


def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return {"x": np.cos(inputs.x) * cotangent_vector["y"]}


def abstract_eval(abstract_inputs):
    return {"y": {"shape": abstract_inputs.x.shape, "dtype": "float64"}}
"""


class Walk:
    """The modules of Chainrule that were entered, in order of their first entry, while it records."""

    def __init__(self) -> None:
        self.modules: dict[str, int] = {}
        self._is_recording = False
        self._names: dict[str, str | None] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note what runs in this thread, and in threads that were started below `profiled_threads`."""
        before = sys.getprofile()
        self._is_recording = True
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            self._is_recording = False

    @contextlib.contextmanager
    def profiled_threads(self) -> Iterator[None]:
        """Threads that start inside of the block are recorded as well."""
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_recording:
            return
        file = frame.f_code.co_filename
        if file not in self._names:
            self._names[file] = _module_of(file)
        name = self._names[file]
        if name is not None:
            self.modules[name] = self.modules.get(name, 0) + 1


def _module_of(file: str) -> str | None:
    path = Path(file)
    if SOURCE not in path.parents:
        return None
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "chainrule"


def request(folder: Path) -> Walk:
    """`POST /vector_jacobian_product` to a server whose worker is a thread of this process."""
    from chainrule.serve import serve

    file = folder / "component.py"
    file.write_text(COMPONENT)
    address: list[str] = []
    is_ready = threading.Event()

    def ready(url: str) -> None:
        address.append(url)
        is_ready.set()

    walk = Walk()
    with walk.profiled_threads():
        thread = threading.Thread(
            target=serve,
            args=(str(file),),
            kwargs={"port": 0, "workers": 0, "on_ready": ready},
            daemon=True,
        )
        thread.start()
        is_ready.wait()
        body = json.dumps(
            {
                "inputs": {"x": [0.0, 1.0]},
                "vjp_inputs": ["x"],
                "vjp_outputs": ["y"],
                "cotangent_vector": {"y": [1.0, 1.0]},
            }
        )
        for _ in range(2):
            _post(address[0], "/vector_jacobian_product", body)
        with walk.recording():
            _post(address[0], "/vector_jacobian_product", body)
    return walk


def _post(address: str, path: str, body: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text.decode()}")


def gradient(folder: Path) -> Walk:
    """`jit(value_and_grad(f))` where `f` calls a component in NumPy in this process; trace and run."""
    import jax
    import jax.numpy as jnp

    from chainrule import Component, apply_component

    file = folder / "component.py"
    file.write_text(COMPONENT)
    component = Component.from_api(file)

    # The profiler sees this thread only, so XLA has to call the host from it.
    jax.config.update("jax_cpu_enable_async_dispatch", False)

    def loss(x: Any) -> Any:
        return jnp.sum(apply_component(component, {"x": x})["y"] ** 2)

    with jax.enable_x64(True):
        return _second_time(lambda: jax.jit(jax.value_and_grad(loss))(jnp.arange(3.0)))


def jacobian(folder: Path) -> Walk:
    """`jacobian(f)(x)`: trace, choose, run."""
    import jax.numpy as jnp

    from chainrule.elimination import jacobian as jacobian_of

    def function(x: Any) -> Any:
        return jnp.sin(x) * jnp.sum(x**2)

    return _second_time(lambda: jacobian_of(lambda x: function(x))(jnp.arange(3.0)))


def _second_time(way: Callable[[], Any]) -> Walk:
    """Twice, each time with a function that JAX has not seen: all of the way but the loading of modules."""
    way()
    walk = Walk()
    with walk.recording():
        way()
    return walk


WAYS: dict[str, Callable[[Path], Walk]] = {
    "request": request,
    "gradient": gradient,
    "jacobian": jacobian,
}


def table(walk: Walk) -> str:
    """The modules of a way, as a table of the page: each with the first line of its docstring."""
    rows = [f"| `{name}` | {_summary(name)} |" for name in walk.modules]
    return "\n".join(["| module | what it is |", "| --- | --- |", *rows])


def _summary(module: str) -> str:
    path = SOURCE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].replace("|", "\\|")


def section(page: str, way: str) -> tuple[int, int]:
    """Where the table of a way begins and ends on the page."""
    found = re.search(rf"<!-- walk: {way} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    if found is None:
        raise ValueError(
            f"{PAGE.name} has no place for the way {way!r}: <!-- walk: {way} --> … <!-- end -->"
        )
    return found.start(1), found.end(1)


def _check_source() -> None:
    """Refuse to walk through another checkout: the lists of this one's modules would be empty."""
    import chainrule

    found = Path(chainrule.__file__).parent
    if found != SOURCE:
        sys.exit(
            f"Expected the library of this checkout, {SOURCE}; Python imports {found}. Set PYTHONPATH="
            f"{SOURCE.parent}."
        )


def main() -> None:
    """Walk, then print or write."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ways", nargs="*", metavar="way", help=f"{', '.join(WAYS)}; all by default")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args()
    if unknown := set(options.ways) - set(WAYS):
        parser.error(f"there is no way {min(unknown)!r}; there are {', '.join(WAYS)}")
    _check_source()
    for way in options.ways or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            walk = WAYS[way](Path(folder))
        if options.write:
            page = PAGE.read_text()
            start, end = section(page, way)
            PAGE.write_text(page[:start] + table(walk) + "\n" + page[end:])
        else:
            calls = sum(walk.modules.values())
            sys.stdout.write(f"{way}: {len(walk.modules)} modules, {calls} calls\n")
            for name, count in walk.modules.items():
                sys.stdout.write(f"  {name:40} {count:5}  {_summary(name)}\n")


if __name__ == "__main__":
    main()
