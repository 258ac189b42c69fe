"""What the tests of the bridge share."""

from pathlib import Path

import jax
import pytest

COMPONENTS = Path(__file__).parent / "components"


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield
