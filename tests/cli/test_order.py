"""`chainrule order`: the order as JSON on standard output, the summary beside it, clear refusals."""

import json

import pytest

from chainrule.cli import main
from chainrule.elimination import Order

FUNCTION = """
import jax.numpy as jnp


def f(x, y):
    z = x * y
    w = jnp.sin(z)
    return w + z, jnp.log(w)
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


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("{file}:missing", "[1.0, 2.0]"), "function_missing"),
        (("nowhere.py:f", "[1.0]"), "file_missing"),
        (("{file}:f", "not json"), "json_invalid"),
        (("{file}:f", "1.0"), "bad_arguments"),
        (("{file}:f", "[1.0, 2.0]", "--objective", "beauty"), "unknown_objective"),
    ],
)
def test_mistakes_are_explained(file, capfd, arguments, reason):
    given = [argument.replace("{file}", str(file)) for argument in arguments]
    code, out, err = chainrule(capfd, "order", *given, "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["error"]["code"] == reason
