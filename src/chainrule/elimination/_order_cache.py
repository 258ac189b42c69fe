"""Orders kept on disk, so that a search is paid for once per machine.

One small file per fingerprint in a folder of its own. Writers never touch a file that readers may see: they
write beside it and rename, which the file system does atomically. A cache that cannot be written is no
error; it is only not there the next time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from chainrule._errors import InputError
from chainrule._trees import LRUCache
from chainrule.elimination._files import cache_folder, keep_newest, write_to_cache
from chainrule.elimination._order import Order

__all__ = ["OrderCache", "shared_cache"]


class OrderCache:
    """Orders by fingerprint and objective, in memory and in a folder.

    Args:
        folder: where files go; made when the first one is written. `None` keeps orders in memory only.
        max_files: the oldest files beyond this number are removed.
    """

    def __init__(self, folder: Path | None, *, max_files: int = 2000) -> None:
        self._folder = folder
        self._max_files = max_files
        self._recent: LRUCache[str, Order] = LRUCache(512)

    def get(self, fingerprint: str, objective: str) -> Order | None:
        """The stored order, if there is a readable one."""
        name = f"{fingerprint}-{objective}"
        found = self._recent.get(name)
        if found is None and self._folder is not None:
            found = self._read(self._folder / f"{name}.json", fingerprint)
            if found is not None:
                self._recent.put(name, found)
        return found

    def put(self, order: Order) -> None:
        """Store an order."""
        name = f"{order.fingerprint}-{order.objective}"
        self._recent.put(name, order)
        if self._folder is not None and write_to_cache(
            self._folder / f"{name}.json", order.to_json().encode()
        ):
            keep_newest(self._folder, "*.json", self._max_files)

    def put_if_better(self, order: Order) -> None:
        """Store an order unless one that is as cheap is there."""
        known = self.get(order.fingerprint, order.objective)
        if known is None or known.cost is None or (order.cost or 0) < known.cost:
            self.put(order)

    @staticmethod
    def _read(path: Path, fingerprint: str) -> Order | None:
        try:
            order = Order.from_json(path.read_bytes())
        except (OSError, InputError):
            return None
        return order if order.fingerprint == fingerprint else None


@cache
def shared_cache() -> OrderCache:
    """The user's cache, one per process, in `$XDG_CACHE_HOME/chainrule/orders` (`~/.cache` by default).

    `CHAINRULE_ORDER_CACHE` names another folder; empty, it keeps orders in memory only.
    """
    return OrderCache(cache_folder("CHAINRULE_ORDER_CACHE", "orders"))
