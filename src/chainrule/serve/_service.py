"""One served component: its facts, its workers, its endpoints on the wire."""

from __future__ import annotations

from dataclasses import dataclass

from chainrule.serve._calls import Call, Facts, Reply
from chainrule.serve._merging import Merger
from chainrule.serve._pool import Pool


@dataclass
class Service:
    """A component behind its pool.

    Attributes:
        name: of the component in URLs.
        pool: what answers.
        facts: known once the pool has started.
        merger: makes one call of several where author or operator want that.
    """

    name: str
    pool: Pool
    facts: Facts
    merger: Merger | None = None

    async def call(self, call: Call) -> Reply:
        """Have a call answered, alone or together with others.

        Raises:
            CallError: as by the pool.
        """
        return await (self.pool if self.merger is None else self.merger).call(call)
