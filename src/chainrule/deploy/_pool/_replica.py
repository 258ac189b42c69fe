"""One copy of a component that a pool sends calls to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from chainrule._errors import TransportError
from chainrule.client import Ticket


class ReplicaLostError(TransportError):
    """A replica died, or cannot be reached any more, and with it the answer of a call.

    Attributes:
        may_repeat: whether the call may be given to another replica; not when the caller's time is up.
        never_began: whether the replica was gone before the call reached it.
    """

    default_code = "replica_lost"

    def __init__(
        self, message: str, *, may_repeat: bool = True, never_began: bool = False, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.may_repeat = may_repeat
        self.never_began = never_began


class Replica(ABC):
    """A copy of the component. `start` is called again after every death.

    Attributes:
        id: name of the replica in its pool.
    """

    id: str

    @abstractmethod
    def start(self) -> dict[str, Any]:
        """Wait until the replica can answer, starting it where that is ours to do.

        Returns:
            The OpenAPI document of the component.

        Raises:
            DefinitionError: the component cannot be loaded.
            TransportError: the replica died while loading.
        """

    @abstractmethod
    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """The answer of an endpoint.

        Raises:
            ReplicaLostError: no answer will come.
            ChainruleError: what the component raised.
        """

    @abstractmethod
    def call_many(
        self, endpoint: str, payloads: Sequence[Mapping[str, Any]], *, ticket: Ticket | None = None
    ) -> list[Any]:
        """Several calls in one message; an answer or a `ChainruleError` for each.

        Raises:
            ReplicaLostError: no answers will come.
        """

    @abstractmethod
    def stop(self) -> None:
        """Let go of the replica, and end it where that is ours to do."""
