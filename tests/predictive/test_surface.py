"""What users can rely on."""

import doctest
import importlib
import pkgutil

import pytest

import chainrule.predictive as cp


def test_public_names_are_exactly_these():
    assert set(cp.__all__) == {
        "FREE", "STATES", "STATUS", "WEIGHTS", "EnergyModule", "Learner", "Phase", "Ruleset",
        "Vode", "VodeParam", "ce_energy", "energies",
        "energies_by_node", "forward", "incremental", "langevin",
        "inference_learning", "predict", "se_energy", "settle", "step", "z_il", "zero_energy",
    }  # fmt: skip
    assert all(getattr(cp, name).__doc__ for name in cp.__all__)


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(cp.__path__)])
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(f"chainrule.predictive.{name}")
    failed, _ = doctest.testmod(module)
    assert failed == 0
