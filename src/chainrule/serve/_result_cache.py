"""Results under the content of what was asked: a call that was answered before is answered from here.

The name of a result is a hash of the request, the endpoint and the component's code, so that a new version of
a component finds nothing of the old one. Kept in memory, by one process, or in a folder, by all processes and
servers that use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chainrule._codec import FRAMES_MEDIA_TYPE, TRUSTING_LIMITS, decode_body, encode_body
from chainrule._lru_cache import LRUCache
from chainrule.runtime.internal import LocalComponent, SharedFolder, content_name

_MAX_ENTRIES = 1 << 16


class ResultCache:
    """What a component answered before.

    Args:
        component: whose settings say where, and how much.
    """

    def __init__(self, component: LocalComponent) -> None:
        config = component.config
        self._hash = component.content_hash
        self._memory: LRUCache[str, bytes] = LRUCache(
            _MAX_ENTRIES, max_bytes=config.max_cache_bytes, size_of=len
        )
        self._folder = None
        if config.cache_folder is not None:
            self._folder = SharedFolder(config.cache_folder, max_bytes=config.max_cache_bytes)

    @classmethod
    def of(cls, component: LocalComponent) -> ResultCache | None:
        """The cache of a component, if its settings ask for one."""
        wanted = component.config.cache
        return cls(component) if component.name in wanted or "*" in wanted else None

    def result(self, endpoint: str, payload: Any, compute: Callable[[], Any]) -> Any:
        """The result of a request, from here or computed. Failures are not kept."""
        name = content_name(self._hash, endpoint, payload)
        if name is None:
            return compute()
        content = self._memory.get(name) if self._folder is None else self._folder.read(name)
        if content is not None:
            return decode_body(content, media_type=FRAMES_MEDIA_TYPE, limits=TRUSTING_LIMITS)
        result = compute()
        content = b"".join(encode_body(result, format=FRAMES_MEDIA_TYPE))
        if self._folder is None:
            self._memory.put(name, content)
        else:
            self._folder.write(name, content)
        return result
