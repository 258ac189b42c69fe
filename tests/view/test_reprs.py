"""What notebooks show of components, schemas, Jacobians, orders and modules: a real IPython is asked."""

from __future__ import annotations

import builtins
import io
from html import unescape
from xml.etree import ElementTree

import jax.numpy as jnp
import pytest
from pydantic import BaseModel, Field
from rich.console import Console

import chainrule
from chainrule import Component, view
from chainrule.elimination import explain_jacobian, find_order, jacobian
from chainrule.errors import InputError
from chainrule.harvest import sow
from chainrule.runtime import Array, Differentiable, Float64
from chainrule.runtime.testing import check_gradients
from chainrule.stateful import Module, Param


class Beam(BaseModel):
    load: Differentiable[Array[("n",), Float64, "N/m"]] = Field(description="on <every> part")
    name: str = "a & b"


@chainrule.component
def weigh(load: Differentiable[Array[("n",), Float64]], factor: float = 2.0) -> float:
    """Sum of the <loads>."""
    return factor * float(load.sum())


@chainrule.component(derivatives="finite")
def double(x: Differentiable[Float64]) -> Differentiable[Float64]:
    return 2 * x


class Layer(Module):
    def __init__(self):
        self.weight = Param(jnp.ones(3))


@pytest.fixture(scope="module")
def shell():
    module = pytest.importorskip("IPython.core.interactiveshell")
    shell = module.InteractiveShell.instance()
    yield shell
    shell.history_manager.end_session()
    module.InteractiveShell.clear_instance()


@pytest.fixture
def shown(shell):
    """The HTML that a notebook would show for a value."""
    # A shell in a terminal formats text only; a notebook's formats everything.
    shell.display_formatter.active_types = shell.display_formatter.format_types

    def show(value):
        return shell.display_formatter.format(value)[0].get("text/html")

    return show


def parsed(html):
    """Well-formed, with everything that is not markup escaped."""
    return "".join(ElementTree.fromstring(f"<div>{html.replace('<br>', '<br/>')}</div>").itertext())


def test_components(shown):
    for component in (weigh, Component.from_api(weigh)):
        text = parsed(shown(component).replace(" open>", ">"))
        for word in ("weigh", "Sum of the <loads>", "load", "f64[n]", "∂", "factor", "2.0"):
            assert word in text


def test_schemas(shown):
    table = view.schema(Beam)
    assert [field.path for field in table.sides["Beam"]] == ["load", "name"]
    text = parsed(shown(table))
    for word in ("f64[n] N/m", "on <every> part", '"a & b"'):
        assert word in text
    console = Console(width=120, file=io.StringIO())
    console.print(table)
    assert "f64[n] N/m" in console.file.getvalue()
    assert set(view.schema(weigh).sides) == {"inputs", "outputs"}
    with pytest.raises(InputError) as caught:
        view.schema(3)
    assert caught.value.code == "no_schema"


def test_classes_of_schemas(shell, shown):
    assert shown(Beam) is None
    shell.run_line_magic("load_ext", "chainrule.view")
    text = parsed(shown(Beam))
    for word in ("Beam", "f64[n] N/m", "on <every> part", '"a & b"'):
        assert word in text
    assert shown(BaseModel) is None
    assert shown(int) is None
    shell.run_line_magic("unload_ext", "chainrule.view")
    assert shown(Beam) is None


def test_texts_of_reports_are_texts_in_a_notebook(monkeypatch, capsys):
    """rich shows what it renders where it believes to be in a notebook, and gives no text then."""
    notebook = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", notebook, raising=False)
    ways = explain_jacobian(jnp.sin, jnp.ones(2))
    report = check_gradients(double, {"x": 1.0}, show_progress=False)
    assert "elimination" in str(ways)
    assert str(report).startswith("check-gradients: ")
    assert capsys.readouterr().out == ""
    assert repr(ways).startswith(f"<Explanation: {ways.taken} is taken")


def test_jacobians(shown):
    block = jacobian(lambda x: x[1:] - x[:-1], sparse=True)(jnp.arange(6.0))
    html = shown(block)
    assert "10 of 30" in parsed(html)
    assert "[5] ← [6]" in parsed(html)
    assert "5 × 6, 10 of 30 entries" in parsed(html)
    large = jacobian(jnp.sin, sparse=True)(jnp.zeros(100_000))
    assert len(large._repr_html_()) < 10_000


def test_orders(shown):
    order = find_order(lambda x, y: jnp.sin(x * y) * x, 0.3, 0.4)
    text = parsed(shown(order))
    assert f"{order.cost} (optimal)" in text
    assert " ".join(map(str, order.vertices)) in text


def test_modules(shown):
    assert "weight" in parsed(shown(Layer()))


def test_pictures(shown):
    def f(x):
        return jnp.sum(sow(jnp.sin(x), "sine") ** 2)

    for picture, word in (
        (view.pipeline(f, jnp.ones(3)), "result"),
        (view.gradient_flow(f, jnp.ones(3)), "sine"),
        (view.spy(jnp.eye(3)), "3 of 9 entries"),
        (view.elimination(f, "reverse", jnp.ones(3)), "Eliminate"),
    ):
        assert word in shown(picture)
        assert "<svg" in unescape(shown(picture))


def test_a_version_is_shown_where_there_is_one(shown):
    def halve(x: float) -> float:
        return x / 2

    plain, versioned = chainrule.component(halve), chainrule.component(version="1.2")(halve)
    assert "<strong>halve</strong>" in shown(plain)
    assert "<strong>halve 1.2</strong>" in shown(versioned)
    assert str(Component.from_api(plain)).startswith("Component halve (")
    assert str(Component.from_api(versioned)).startswith("Component halve 1.2 (")


def test_a_picture_is_one_line_as_text():
    def function(x, y):
        z = jnp.sin(x * y)
        return z + x, jnp.exp(z)

    steps = view.elimination(function, "auto", 0.3, 0.4)
    assert repr(steps) == f"<{steps.title}, {len(steps.steps)} steps>"
    assert repr(view.pipeline(function, 0.3, 0.4)) == "<Pipeline of 1 part: function>"
    assert repr(view.spy(jnp.eye(3))) == "<Spy 3 × 3, 3 of 9 entries>"
