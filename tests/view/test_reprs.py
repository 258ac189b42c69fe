"""What notebooks show of components, schemas, Jacobians, orders and modules."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import jax.numpy as jnp
import pytest
from pydantic import BaseModel, Field
from rich.console import Console

import chainrule
from chainrule import Component, view
from chainrule._errors import InputError
from chainrule.elimination import find_order, jacobian
from chainrule.runtime import Array, Differentiable, Float64
from chainrule.stateful import Module, Param


class Beam(BaseModel):
    load: Differentiable[Array[("n",), Float64, "N/m"]] = Field(description="on <every> part")
    name: str = "a & b"


@chainrule.component
def weigh(load: Differentiable[Array[("n",), Float64]], factor: float = 2.0) -> float:
    """Sum of the <loads>."""
    return factor * float(load.sum())


class Layer(Module):
    def __init__(self):
        self.weight = Param(jnp.ones(3))


def parsed(html):
    """Well-formed, with everything that is not markup escaped."""
    return "".join(ElementTree.fromstring(f"<div>{html.replace('<br>', '<br/>')}</div>").itertext())


def test_components():
    for component in (weigh, Component.from_api(weigh)):
        text = parsed(component._repr_html_().replace(" open>", ">"))
        for word in ("weigh", "Sum of the <loads>", "load", "f64[n]", "∂", "factor", "2.0"):
            assert word in text


def test_schemas():
    table = view.schema(Beam)
    assert [field.path for field in table.sides["Beam"]] == ["load", "name"]
    text = parsed(table._repr_html_())
    for word in ("f64[n] N/m", "on <every> part", '"a & b"'):
        assert word in text
    console = Console(width=120, file=io.StringIO())
    console.print(table)
    assert "f64[n] N/m" in console.file.getvalue()
    assert set(view.schema(weigh).sides) == {"inputs", "outputs"}
    with pytest.raises(InputError) as caught:
        view.schema(3)
    assert caught.value.code == "no_schema"


def test_jacobians():
    block = jacobian(lambda x: x[1:] - x[:-1], sparse=True)(jnp.arange(6.0))
    html = block._repr_html_()
    assert "10 of 30" in parsed(html)
    assert "[5] ← [6]" in parsed(html)
    # Two bands of five entries each: one square an entry.
    assert html.count("fill-opacity") == 10
    large = jacobian(jnp.sin, sparse=True)(jnp.zeros(100_000))
    assert large._repr_html_().count("fill-opacity") == 48


def test_orders():
    order = find_order(lambda x, y: jnp.sin(x * y) * x, 0.3, 0.4)
    text = parsed(order._repr_html_())
    assert f"{order.cost} (optimal)" in text
    assert " ".join(map(str, order.vertices)) in text


def test_modules():
    assert "weight" in parsed(Layer()._repr_html_())
