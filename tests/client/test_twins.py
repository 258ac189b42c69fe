"""Every method that calls an endpoint has an asynchronous twin with the same arguments."""

import asyncio
import inspect
from pathlib import Path

import jax
import numpy as np
import pytest

from chainrule import Component
from chainrule._endpoints import ENDPOINTS

CALLING = [*ENDPOINTS, "health"]


@pytest.mark.parametrize("name", CALLING)
def test_twin(name):
    there, twin = getattr(Component, name), getattr(Component, f"{name}_async")
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(there)
    assert twin.__doc__ == f"`{name}`, to be awaited: {there.__doc__}"


def test_tagged_values_can_be_awaited():
    file = Path(__file__).parents[1] / "bridge" / "components" / "tagged_component.py"
    component = Component.from_api(file)
    inputs = {"x": np.array([0.3, -1.2]), "scale": 1.5, "times": 3}
    found = asyncio.run(component.tagged_intermediates_async(inputs, run_id="one"))
    expected = component.tagged_intermediates(inputs)
    assert found.keys() == expected.keys() != set()
    for name, entry in expected.items():
        jax.tree.map(np.testing.assert_array_equal, found[name], entry)
