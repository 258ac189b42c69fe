"""Quantities are converted at the border, or refused."""

import sys

import numpy as np
import pytest
from pydantic import ValidationError, create_model

from chainrule.runtime import Array, Float64, Int32
from chainrule.runtime._schema._spec import pint_registry

pint = pytest.importorskip("pint")

Speed = Array[(None,), Float64, "m/s"]
Model = create_model("Model", speed=(Speed, ...))


def refuse(value, model=Model):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    (error,) = caught.value.errors()
    return error


def encoded(units):
    data = {"buffer": [36.0], "encoding": "json"}
    return {"shape": [1], "dtype": "float64", "data": data, "units": units}


def test_quantities_are_converted():
    assert Model(speed=pint.Quantity([36.0], "km/h")).speed.tolist() == pytest.approx([10.0])
    assert Model(speed=pint.Quantity(np.ones(2), "m/s")).speed.tolist() == [1.0, 1.0]


def test_plain_numbers_are_in_the_declared_units():
    assert Model(speed=[3.0]).speed.tolist() == [3.0]


def test_a_quantity_of_another_registry_is_converted():
    other = pint.UnitRegistry()
    assert Model(speed=other.Quantity([1.0], "km/s")).speed.tolist() == pytest.approx([1000.0])


def test_offset_units():
    model = create_model("Model", t=(Array[(), Float64, "kelvin"], ...))
    assert model(t=pint.Quantity(20.0, "degC")).t == pytest.approx(293.15)


def test_incompatible_units_are_refused_with_both_named():
    error = refuse({"speed": pint.Quantity([1.0], "kg")})
    assert error["type"] == "array_unit_mismatch"
    assert error["ctx"] == {"expected_units": "m/s", "actual_units": "kilogram"}


def test_a_field_without_units_takes_no_quantity_but_a_dimensionless_one():
    plain = create_model("Plain", x=(Array[(None,), Float64], ...))
    assert refuse({"x": pint.Quantity([1.0], "m")}, plain)["type"] == "array_unit_mismatch"
    assert plain(x=pint.Quantity([50.0], "percent")).x.tolist() == [0.5]


def test_encoded_arrays_may_state_their_units():
    assert Model(speed=encoded("km/h")).speed.tolist() == pytest.approx([10.0])
    assert Model(speed=encoded("m/s")).speed.tolist() == [36.0]
    for units in ("kg", "nonsense", "(", 3):
        assert refuse({"speed": encoded(units)})["type"] == "array_unit_mismatch"
    assert refuse({"speed": encoded(3)})["msg"].endswith("Write units as text.")


def test_a_conversion_that_needs_fractions_does_not_become_an_integer():
    model = create_model("Model", n=(Array[(None,), Int32, "m"], ...))
    assert refuse({"n": pint.Quantity([1], "inch")}, model)["type"] == "array_dtype_mismatch"


@pytest.fixture
def without_pint(monkeypatch):
    monkeypatch.setitem(sys.modules, "pint", None)  # importing it fails
    pint_registry.cache_clear()
    yield
    pint_registry.cache_clear()


def test_without_pint_units_are_labels(without_pint):
    label = create_model("Label", x=(Array[(None,), Float64, "anything"], ...))
    assert label(x=encoded("anything")).x.tolist() == [36.0]
    assert "Install pint" in refuse({"x": encoded("km")}, label)["msg"]
