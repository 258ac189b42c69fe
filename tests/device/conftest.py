"""The GPU of the tests that exchange memory between processes."""

import pytest

from device.gpu import gpu_for_tests


@pytest.fixture(scope="module")
def gpu():
    """The GPU, or the fake one."""
    with gpu_for_tests() as found:
        yield found
