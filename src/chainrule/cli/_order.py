"""`chainrule order FILE:FUNCTION`: search for a cheap elimination order and print it as JSON."""

from __future__ import annotations

import json
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chainrule._describe import did_you_mean
from chainrule._errors import ChainruleError, ComponentError, InputError
from chainrule._trees import map_leaves
from chainrule.cli._output import result_stream, write_error


def add_arguments(parser: ArgumentParser) -> None:
    """The function, example arguments, and how long to search for what."""
    parser.add_argument("function", metavar="FILE:FUNCTION", help="A function that JAX can trace")
    parser.add_argument(
        "arguments",
        metavar="ARGUMENTS",
        help="Example arguments as a JSON list; only their shapes matter",
    )
    parser.add_argument(
        "--argnums",
        metavar="0,1,…",
        help="Differentiate these arguments, and pass the others as they are (default: all)",
    )
    parser.add_argument(
        "--objective", default="multiplications",
        help="Minimise multiplications, nontrivial, operations, time or memory")  # fmt: skip
    parser.add_argument(
        "--budget", type=float, default=5.0, metavar="SECONDS", help="Search for this many seconds"
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the search")
    parser.add_argument("--edges", action="store_true", help="Eliminate single edges, too")
    parser.add_argument("--float64", action="store_true", help="Trace in double precision")
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    with result_stream() as stdout:
        order = _search(options)
        stdout.write([(order.to_json() + "\n").encode()])
    if not options.json:
        write_error(_summary(order))
    return 0


def _search(options: Namespace) -> Any:
    import jax.numpy as jnp

    from chainrule._jaxpr import enable_x64
    from chainrule.elimination import find_order

    function = _load(options.function)
    values = _read_arguments(options.arguments)
    argnums = _read_argnums(options.argnums, len(values))
    with enable_x64(options.float64):
        arguments = [
            _as_arrays(value, jnp, k) if k in argnums else value for k, value in enumerate(values)
        ]
        with _failures_of(options.function):
            return find_order(
                function, *arguments, argnums=argnums, objective=options.objective,
                budget_s=options.budget, seed=options.seed, edges=options.edges,
                progress=not options.json,
            )  # fmt: skip


@contextmanager
def _failures_of(target: str) -> Iterator[None]:
    """Say where the user's function failed, without the frames of JAX around it."""
    try:
        yield
    except ChainruleError:
        raise
    except Exception as error:
        file = Path(target.rpartition(":")[0]).resolve()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
        where = f" at {file.name}:{lines[-1]}" if lines else ""
        text = str(error).partition("\n")[0]
        raise ComponentError(
            f"{target} failed{where} while JAX traced it: {type(error).__name__}: {text}",
            code="function_failed",
        ) from error


def _read_arguments(text: str) -> list[Any]:
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"ARGUMENTS is not JSON: {error}.", code="json_invalid") from None
    if not isinstance(arguments, list) or not arguments:
        raise InputError(
            f"ARGUMENTS is a JSON list with one entry per argument, found {text[:60]!r}. "
            "For a function of one vector: '[[1.0, 2.0]]'.",
            code="bad_arguments",
        )
    return arguments


def _read_argnums(text: str | None, count: int) -> tuple[int, ...]:
    if text is None:
        return tuple(range(count))
    try:
        return tuple(range(count)[int(part)] for part in text.split(","))
    except (ValueError, IndexError):
        raise InputError(
            f"--argnums takes positions among {count} arguments, such as 0 or 0,2; found {text!r}.",
            code="bad_argnums",
        ) from None


def _as_arrays(value: Any, jnp: Any, position: int) -> Any:
    def as_array(leaf: Any) -> Any:
        try:
            return jnp.asarray(leaf, float)
        except (TypeError, ValueError):
            raise InputError(
                f"Argument {position} is not an array of numbers: {json.dumps(leaf)[:60]}. Leave it out of "
                "--argnums if it is not differentiated.",
                code="bad_arguments",
            ) from None

    return map_leaves(as_array, value, is_leaf=lambda node: isinstance(node, list))


def _load(target: str) -> Any:
    from chainrule.runtime.internal import load_module

    file, colon, name = target.rpartition(":")
    if not colon or not Path(file).is_file():
        raise InputError(
            f"Expected FILE:FUNCTION with an existing file, found {target!r}.", code="file_missing"
        )
    module = load_module(Path(file).resolve())
    function = getattr(module, name, None)
    if not callable(function):
        functions = [name for name, value in vars(module).items() if callable(value)]
        raise InputError(
            f"{file} has no function {name!r}.{did_you_mean(name, functions)}",
            code="function_missing",
        )
    return function


def _summary(order: Any) -> str:
    bound = "no bound known" if order.bound is None else f"lower bound {order.bound}"
    proof = ", optimal" if order.optimal else ""
    return f"{order.cost} {order.objective} ({bound}{proof}), found by {order.method}\n"
