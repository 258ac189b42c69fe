"""What could be called can be called: arguments, their order, names and defaults, of every public name."""

import importlib
import sys

import pytest

from compat import signatures
from compat import test_names as names

# An array type has no instances; what it declares is in `.spec`.
ARRAY_TYPES = {
    "Array", "Bool", "Complex64", "Complex128", "Float16", "Float32", "Float64", "Int8", "Int16",
    "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "PydanticArrayAnnotation",
}  # fmt: skip

DIFFERENCES = {
    "tesseract_core": {
        "BinrefArray: variadic keyword",
        "BinrefArray: variadic positional",
        "BinrefArray: missing a required argument: 'reference'",
        "BinrefArray.load: context by name",
        "BinrefArray.load: context by position",
        "BinrefArray.to_arraydict: missing",
        "ShapeDType.from_array_type: missing",
        "TesseractReference: tesseract by name",
    },
    "tesseract_jax": set(),
    "pcx": {
        "LayerNorm: default of shape",
        "LayerNorm: missing a required argument: 'shape'",
        "RKG: default of n",
        "RandomKeyGenerator.__call__: default of n",
        "Ruleset.apply_get_transformation: missing",
        "Ruleset.apply_set_transformation: missing",
        "Ruleset.filter: missing",
        "Ruleset.submodules: missing",
        "vmap: default of out_axes",
    },
}


@pytest.mark.interop
@pytest.mark.parametrize("package", sorted(DIFFERENCES))
def test_signatures_are_those_of_the_ancestor(package):
    found = set()
    for name, there in names.public_modules(package):
        here = importlib.import_module(f"chainrule.compat.{name}")
        public = names.public_names(there) - ARRAY_TYPES
        found |= set(signatures.differences(there, here, public))
    assert found == DIFFERENCES[package]


def test_the_pages_list_every_difference():
    for package, differences in DIFFERENCES.items():
        text = names.PAGES[package].read_text()
        for difference in differences:
            name = difference.partition(":")[0].removesuffix(".__call__")
            assert f"`{name.replace('RandomKeyGenerator', 'RKG')}" in text, difference


def test_parameters_pass_on_what_they_hold():
    import jax.numpy as jnp

    from chainrule.compat import pcx as px

    for kind in (px.Param, px.nn.LayerParam, px.predictive_coding.VodeParam):
        held = kind(jnp.zeros((2, 3), jnp.float32))
        assert (held.shape, held.ndim, held.dtype) == ((2, 3), 2, jnp.float32)


class Taking:
    """For the checker: one method of every kind."""

    def __init__(self, a, b=1):
        pass

    def call(self, x, *, y=None):
        pass


def test_the_checker_sees_what_differs():
    class Other:
        def __init__(self, b, a=2):
            pass

        def call(self, x, z, y=3):
            pass

    there = type(sys)("there")
    there.Taking = Taking
    here = type(sys)("here")
    here.Taking = Other
    assert set(signatures.differences(there, here, {"Taking"})) == {
        "Taking: a by position",
        "Taking: b by position",
        "Taking: default of b",
        "Taking.call: default of y",
        "Taking.call: missing a required argument: 'z'",
    }
