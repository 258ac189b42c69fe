import jax
import pytest


@pytest.fixture(autouse=True)
def _x64():
    """Comparisons to 1e-10 need double precision; tests of single precision switch it off again."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _no_stored_orders(monkeypatch):
    """Orders of earlier runs must not decide what a test sees."""
    from chainrule.elimination import _choose, _find_order
    from chainrule.elimination._order_cache import OrderCache

    cache = OrderCache(None)
    for module in (_choose, _find_order):
        monkeypatch.setattr(module, "shared_cache", lambda: cache)


@pytest.fixture(autouse=True)
def _ordinary_prices(monkeypatch):
    """What a test sees must not depend on how busy the machine was when it was measured."""
    from chainrule.elimination import _calibration, _find_order, _methods

    for module in (_methods, _find_order):
        monkeypatch.setattr(module, "prices", lambda: _calibration.DEFAULT_PRICES)
