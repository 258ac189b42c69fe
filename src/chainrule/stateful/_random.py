"""Random keys as tracked state: a generator is a parameter that advances whenever a key is drawn.

`RKG` is the default generator. Every transformation tracks it without being told; it is made when the first
key is drawn, always from the same seed, so a program is reproducible unless it asks for something else.

Threads. A draw reads the state, splits it, and stores what is left; a jitted call does the same around its
whole run. Two threads that read before either has stored would draw the same keys. So every thread has a
state of `RKG` of its own: the thread that imports the library has the seed's, any other that of the seed
folded with a number of its own. A generator that a user makes has one state, which can be saved and loaded.
Draws from it outside of transformations wait for each other; jitted functions that draw from it must not run
in two threads at once, as with every parameter that they write.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import jax

from chainrule.stateful._frames import local
from chainrule.stateful._module import Module
from chainrule.stateful._params import DynamicParam

_NO_METADATA = DynamicParam().metadata
# Reading a state and setting the next one is one step, or two threads would draw the same keys. Reentrant,
# because a finalizer that runs in between may draw as well.
_drawing = threading.RLock()


class RKGState(DynamicParam):
    """The state of a generator: the raw data of one random key.

    The raw data, not a typed key, because `jax.jit` dispatches plain arrays several times faster.
    The state is made from the seed when it is first read, so that making a generator starts no backend.
    """

    __slots__ = ()

    is_forked: ClassVar[bool] = True
    """Whether lanes of `vmap` that share the generator draw different keys."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(None)
        self.__dict__["_seed"] = seed

    def _whole(self) -> Any:
        if self._value is None and "_seed" in self.__dict__:
            # The first read may happen inside a trace; the state itself never belongs to one.
            with jax.ensure_compile_time_eval():
                self._value = jax.random.PRNGKey(self.__dict__["_seed"])
        return super()._whole()

    @property
    def metadata(self) -> Any:
        """None: the seed is where the state came from, not part of the structure."""
        return _NO_METADATA

    def seed(self, seed: Any) -> RKGState:
        """Start again from a seed: the calling thread, and the threads that begin to draw later."""
        if not local.stack and not isinstance(seed, jax.core.Tracer):
            self.__dict__["_seed"] = seed
        return self.set(jax.random.PRNGKey(seed))

    def split(self, count: int) -> Any:
        """Draw `count` keys and advance."""
        if local.stack:  # a frame belongs to one thread
            return self._split(count)
        with _drawing:
            return self._split(count)

    def _split(self, count: int) -> Any:
        keys = jax.random.split(jax.random.wrap_key_data(self.get()), count + 1)
        # Rows of typed keys would be further programs to compile.
        rows = jax.random.key_data(keys)
        self.set(rows[0])
        return jax.random.wrap_key_data(rows[1:])


class _ThreadCell(threading.local):
    """The storage of a parameter that has a value per thread, used as `Cell` is.

    Python runs `__init__` again in every thread that uses the object: there the thread gets its first value.
    """

    def __init__(self, state: RKGState, numbers: Iterator[int]) -> None:
        number = next(numbers)
        self.value: Any = None
        # Thread 0 imports the library. Its value is made by the first read, so that no backend starts yet.
        if number > 0:
            with jax.ensure_compile_time_eval():
                key = jax.random.PRNGKey(state.__dict__["_seed"])
                self.value = jax.random.fold_in(key, number)


class RandomKeyGenerator(Module):
    """Hands out fresh random keys.

    Args:
        seed: where the sequence starts.

    Example:
        >>> generator = RandomKeyGenerator(0)
        >>> key = generator()
        >>> keys = generator(3)
        >>> keys.shape
        (3,)
    """

    def __init__(self, seed: int = 0) -> None:
        self.key = RKGState(seed)

    def seed(self, seed: Any = 0) -> None:
        """Start again from a seed."""
        self.key.seed(seed)

    def __call__(self, n: int | None = None) -> Any:
        """One typed key; with `n`, an array of that many."""
        return self.key.split(1)[0] if n is None else self.key.split(n)


RKG = RandomKeyGenerator(0)
object.__setattr__(RKG.key, "_cell", _ThreadCell(RKG.key, itertools.count()))
