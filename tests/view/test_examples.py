"""The examples in the docstrings say what happens."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["_elimination", "_pipeline", "_spy"])
def test_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(f"chainrule.view.{name}"))
    assert tried > 0
    assert failed == 0
