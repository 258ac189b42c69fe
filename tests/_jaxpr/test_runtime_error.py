"""Kept exceptions come back where JAX raises the text that stands for them."""

import pickle

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from pydantic_core import ValidationError

from chainrule._jaxpr import restore_errors

MARK = "the exception kept by this test"


class PickyError(OSError):
    """Neither its arguments nor its text are those of its base."""

    def __init__(self, *, code):
        super().__init__(5, "no device")
        self.code = code

    def __str__(self):
        return f"code {self.code}"


@pytest.fixture(scope="module")
def kept():
    """Where this module's look-up finds the exception."""
    box = []
    restore_errors(lambda text: box[-1] if box and MARK in text else None)
    yield box
    box.clear()


@jax.jit
def failing(x):
    def fail(x):
        raise RuntimeError(MARK)

    return jax.pure_callback(fail, x, x)


def caught():
    with pytest.raises(BaseException) as found:  # noqa: PT011
        failing(1.0).block_until_ready()
    return found.value


@pytest.mark.parametrize(
    "original",
    [
        ValueError("text", 3),
        KeyError("key"),
        PickyError(code=7),
        UnicodeDecodeError("utf8", b"a", 0, 1, "reason"),
        np.linalg.LinAlgError("singular"),
        ExceptionGroup("several", [ValueError(1)]),
        KeyboardInterrupt(),
        SystemExit(3),
        JaxRuntimeError("of another program"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_type_arguments_and_text(kept, original):
    kept.append(original)
    error = caught()
    assert isinstance(error, type(original))
    assert isinstance(error, JaxRuntimeError)
    assert (str(error), error.args) == (str(original), original.args)
    assert (type(error).__name__, type(error).__module__) == (
        type(original).__name__,
        type(original).__module__,
    )
    assert error.__cause__ is original
    if not isinstance(original, JaxRuntimeError):
        assert MARK in getattr(error, "error_message", MARK)  # JAX has it since 0.8
    for name in ("errno", "strerror", "code", "start", "reason"):
        assert getattr(error, name, None) == getattr(original, name, None)


def test_notes_are_copied(kept):
    original = ValueError("text")
    original.add_note("first")
    kept.append(original)
    error = caught()
    error.add_note("second")
    assert original.__notes__ == ["first"]
    assert error.__notes__[:1] == ["first"]


def test_a_class_that_cannot_be_derived_from(kept):
    original = ValidationError.from_exception_data("model", [])
    kept.append(original)
    error = caught()
    assert isinstance(error, JaxRuntimeError)
    assert str(error).startswith("ValidationError: 0 validation errors")
    assert error.__cause__ is original


def test_it_travels_as_the_original(kept):
    kept.append(ValueError("text"))
    again = pickle.loads(pickle.dumps(caught()))
    assert type(again) is ValueError
    assert again.args == ("text",)


def test_unknown_texts_stay(kept):
    kept.clear()
    error = caught()
    assert type(error) is JaxRuntimeError
    assert MARK in str(error)
    assert type(JaxRuntimeError("made by hand")) is JaxRuntimeError
