"""The exception tree: codes survive, also across a process border."""

import pickle

import pytest

from chainrule import _errors
from chainrule.errors import ChainruleError, ComponentError, PathError

CLASSES = [getattr(_errors, name) for name in _errors.__all__]


@pytest.mark.parametrize("cls", CLASSES)
def test_pickle_keeps_every_fact(cls):
    error = cls("what happened", code="some_code", path="a.b", details={"shape": [3]})
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.message, copy.code, copy.path, copy.details) == (
        "what happened",
        "some_code",
        "a.b",
        {"shape": [3]},
    )
    assert str(copy) == "what happened [some_code]"


def test_default_codes_are_distinct():
    codes = [cls.default_code for cls in CLASSES]
    assert len(set(codes)) == len(codes)


def test_builtin_parents_let_ordinary_code_catch_them():
    assert issubclass(PathError, LookupError)
    assert issubclass(PathError, ValueError)
    assert issubclass(ComponentError, RuntimeError)
    assert all(issubclass(cls, ChainruleError) for cls in CLASSES)


def test_component_error_carries_the_remote_traceback():
    error = pickle.loads(pickle.dumps(ComponentError("boom", remote_traceback="Traceback: …")))
    assert error.remote_traceback == "Traceback: …"
