"""What an author gives, however it was written: as a module, a function or a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel

from chainrule._errors import DefinitionError
from chainrule.runtime._component._capabilities import Implementation

Batching = Literal["elementwise", "leading"]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One component before it is configured.

    Attributes:
        name: of the component.
        version: of the component, as its author counts.
        description: prose for people.
        input_schema: model of the inputs.
        output_schema: model of the outputs.
        implementations: endpoint → function and where it comes from.
        function: the author's own function, callable in Python as it was written.
        content_hash: changes when the component's code or schemas do.
        jax_function: the traceable function from nested inputs to nested outputs, when there is one.
        jax_derivatives: whether the derivative endpoints give what JAX makes of `jax_function`, rather than
            something that the author thought of.
        batching: `elementwise` when any extra leading axes may be added to all arrays, `leading` when
            the first axis of every array is a batch of independent cases, `None` when nobody says.
        merge_up_to: how many concurrent single calls a server may merge into one, if it batches; 0 for none.
    """

    name: str
    version: str = "unknown"
    description: str = ""
    input_schema: type[BaseModel]
    output_schema: type[BaseModel]
    implementations: Mapping[str, Implementation]
    function: Callable[..., Any]
    content_hash: str
    jax_function: Callable[[Any], Any] | None = None
    jax_derivatives: bool = True
    batching: Batching | None = None
    merge_up_to: int = 0

    def __post_init__(self) -> None:
        if self.batching not in (None, *get_args(Batching)):
            raise DefinitionError(
                f"{self.name} declares batching {self.batching!r}; expected 'elementwise', 'leading' or "
                "nothing.",
                code="bad_batching",
            )
