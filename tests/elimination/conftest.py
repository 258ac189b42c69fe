import jax
import pytest


@pytest.fixture(autouse=True)
def _x64():
    """Comparisons to 1e-10 need double precision; tests of single precision switch it off again."""
    with jax.enable_x64(True):
        yield
