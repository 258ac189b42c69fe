"""`chainrule order FILE:FUNCTION`: search for a cheap elimination order and print it as JSON."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._streams import result_stream

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """The function, example arguments, and how long to search for what."""
    parser.add_argument("function", metavar="FILE:FUNCTION", help="a function that JAX can trace")
    parser.add_argument(
        "arguments",
        metavar="ARGUMENTS",
        help="example arguments as a JSON list; only shapes matter",
    )
    parser.add_argument("--objective", default="multiplications", help="what is made small")
    parser.add_argument("--budget", type=float, default=5.0, metavar="SECONDS", help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices")
    parser.add_argument("--float64", action="store_true", help="trace in double precision")


def run(options: Namespace) -> int:
    """Search, and print the order."""
    with result_stream() as stdout:
        order = _search(options)
        stdout.write([(order.to_json() + "\n").encode()])
    if not options.json:
        sys.stderr.write(_summary(order))
    return 0


def _search(options: Namespace) -> Any:
    import jax.numpy as jnp

    from chainrule._jaxpr import enable_x64
    from chainrule.elimination import find_order

    with enable_x64(options.float64):
        arguments = [_as_arrays(value, jnp) for value in _read_arguments(options.arguments)]
        return find_order(
            _load(options.function), *arguments, objective=options.objective,
            budget_s=options.budget, seed=options.seed, progress=not options.json,
        )  # fmt: skip


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


def _as_arrays(value: Any, jnp: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_arrays(item, jnp) for key, item in value.items()}
    return jnp.asarray(value, float)


def _load(target: str) -> Any:
    from chainrule.runtime._component._isolation import load_module

    file, colon, name = target.rpartition(":")
    if not colon or not Path(file).is_file():
        raise InputError(
            f"Expected FILE:FUNCTION with an existing file, found {target!r}.", code="file_missing"
        )
    function = getattr(load_module(Path(file).resolve()), name, None)
    if not callable(function):
        raise InputError(f"{file} has no function {name!r}.", code="function_missing")
    return function


def _summary(order: Any) -> str:
    bound = "no bound known" if order.bound is None else f"lower bound {order.bound}"
    proof = ", optimal" if order.optimal else ""
    return f"{order.cost} {order.objective} ({bound}{proof}), found by {order.method}\n"
