"""`gradient_flow`: norms, table, plot."""

import io
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from chainrule.harvest import intermediate_stats, save_intermediates, sow
from chainrule.view import gradient_flow


def f(x):
    h = sow({"a": 2 * x, "n": 3, "s": "text"}, "first")
    return jnp.sum(sow(jnp.sin(h["a"]) * h["n"], "second"))


X = jnp.array([0.1, 0.2])


def test_norms_of_arrays_and_of_statistics():
    expected = [
        ("first", np.sqrt(np.sum((2 * X) ** 2) + 9), np.linalg.norm(3 * np.cos(2 * X))),
        ("second", np.linalg.norm(3 * np.sin(2 * X)), np.sqrt(2)),
    ]
    for capture in (save_intermediates, intermediate_stats):
        rows = gradient_flow(capture(jax.grad(f))(X)[1]).rows
        for row, (name, value, cotangent) in zip(rows, expected, strict=True):
            assert row.name == name
            np.testing.assert_allclose(
                [row.value_norm, row.cotangent_norm], [value, cotangent], rtol=1e-5
            )
            assert row.nonfinite == 0
    assert rows[1].size == 2


def test_table_marks_what_is_not_finite():
    _, found = save_intermediates(jax.grad(lambda x: sow(jnp.log(x), "log")))(0.0)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(gradient_flow(found))
    text = console.export_text()
    assert "log" in text
    assert "inf" in text


def test_plot():
    flow = gradient_flow(save_intermediates(f)(X)[1])
    assert flow.rows[0].cotangent_norm is None
    axes = flow.plot()
    assert [line.get_label() for line in axes.get_lines()] == ["value"]
    assert gradient_flow(save_intermediates(jax.grad(f))(X)[1]).plot(axes) is axes
    assert len(axes.get_lines()) == 3


def test_importing_the_view_does_not_import_matplotlib():
    script = "import sys, chainrule.view; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
