"""`chainrule order`: the order as JSON on standard output, the summary beside it, clear refusals."""

import json
import os

import pytest

from chainrule.cli import main
from chainrule.elimination import Order

FUNCTION = """
import jax.numpy as jnp


def f(x, y):
    z = x * y
    w = jnp.sin(z)
    return w + z, jnp.log(w)


def entry(x, place):
    return jnp.sin(x)[place] * 2.0
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTION)
    return path


def chainrule(capfd, *arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return left.value.code, *capfd.readouterr()


def test_order_is_printed_and_proved(file, capfd):
    code, out, err = chainrule(capfd, "order", f"{file}:f", "[0.3, 0.4]", "--budget", "0.2")
    assert code == 0, err
    order = Order.from_json(out)
    # Griewank's smallest example: six multiplications, and no order needs fewer.
    assert (order.cost, order.optimal) == (6, True)
    assert "optimal" in err


def test_a_result_that_nobody_reads_is_no_failure(file):
    reader, writer = os.pipe()
    os.close(reader)
    before = os.dup(1)
    os.dup2(writer, 1)
    try:
        with pytest.raises(SystemExit) as left:
            main(["order", f"{file}:f", "[0.3, 0.4]", "--budget", "0"])
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(writer)
    assert left.value.code == 141


def test_arguments_that_are_not_differentiated(file, capfd):
    settings = ("--argnums", "-2", "--budget", "0", "--edges")
    code, out, err = chainrule(capfd, "order", f"{file}:entry", "[[0.3, 0.4], 1]", *settings)
    assert code == 0, err
    assert len(Order.from_json(out)) > 0


def test_a_function_that_fails_says_where(file, capfd):
    code, out, err = chainrule(capfd, "order", f"{file}:entry", "[[0.3, 0.4], 0.5]", "--json")
    error = json.loads(err)["error"]
    assert (code, out, error["code"]) == (1, "", "function_failed")
    assert "functions.py:12 while JAX traced it: TypeError" in error["message"]
    code, _, err = chainrule(capfd, "order", f"{file}:entry", "[[0.3, 0.4]]")
    assert code == 1
    assert "missing 1 required positional argument" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("{file}:missing", "[1.0, 2.0]"), "function_missing"),
        (("nowhere.py:f", "[1.0]"), "file_missing"),
        (("{file}:f", "not json"), "json_invalid"),
        (("{file}:f", "1.0"), "bad_arguments"),
        (("{file}:f", "[1.0, 2.0]", "--objective", "beauty"), "unknown_objective"),
        (("{file}:f", '["a", 2.0]'), "bad_arguments"),
        (("{file}:f", "[[[1], [2, 3]], null]"), "bad_arguments"),
        (("{file}:f", "[1.0, 2.0]", "--argnums", "all"), "bad_argnums"),
        (("{file}:f", "[1.0, 2.0]", "--argnums", "0,2"), "bad_argnums"),
        (("{file}:f", "[1.0, 2.0]", "--budget", "nan"), "bad_budget"),
    ],
)
def test_mistakes_are_explained(file, capfd, arguments, reason):
    given = [argument.replace("{file}", str(file)) for argument in arguments]
    code, out, err = chainrule(capfd, "order", *given, "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["error"]["code"] == reason
