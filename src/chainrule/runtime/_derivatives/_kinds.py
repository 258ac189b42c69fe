"""What a derivative endpoint is, as data.

The derivative endpoints differ in a few facts: which vectors the caller gives beside the inputs, what comes
back, and over which paths. Everything that is done for all of them (schemas, validation, derivation, command
line, client methods) is written once over these descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Side = Literal["inputs", "outputs"]

BATCHED = "batched"
"""The optional argument by which a caller says that vectors carry a leading batch axis."""


class Vector(NamedTuple):
    """A vector argument.

    Attributes:
        name: of the argument.
        over: which side's paths its keys are.
    """

    name: str
    over: Side


TANGENT = Vector("tangent_vector", "inputs")
COTANGENT = Vector("cotangent_vector", "outputs")


@dataclass(frozen=True)
class DerivativeKind:
    """One of the derivative endpoints.

    Attributes:
        endpoint: name of the endpoint and of the author's function.
        short: prefix of its path arguments: `jac_inputs`, `jvp_outputs`, ….
        model_prefix: prefix of the generated models (`Jvp_InputSchema`).
        schema_prefix: prefix of the request and response wrappers (`JVPInputSchema`).
        vectors: the vector arguments, in order.
        result_over: the sides whose paths key the result, outermost first. A result's shape is the
            concatenation of the shapes at these paths.
        takes_batches: whether a request may carry `batched`.
        all_paths: whether a request may leave out the paths, which means all differentiable ones.
        with_value: whether the outputs come back too: the function returns `(outputs, derivative)`, the
            endpoint `{"outputs": …, "gradient": …}`.
    """

    endpoint: str
    short: str
    model_prefix: str
    schema_prefix: str
    vectors: tuple[Vector, ...]
    result_over: tuple[Side, ...]
    takes_batches: bool = False
    all_paths: bool = False
    with_value: bool = False

    @property
    def vector(self) -> str | None:
        """Name of the vector argument, where there is exactly one."""
        return self.vectors[0].name if len(self.vectors) == 1 else None

    @property
    def vector_over(self) -> Side | None:
        """Which side's paths that vector's keys are."""
        return self.vectors[0].over if len(self.vectors) == 1 else None

    @property
    def inputs_argument(self) -> str:
        """Name of the argument with the input paths."""
        return f"{self.short}_inputs"

    @property
    def outputs_argument(self) -> str:
        """Name of the argument with the output paths."""
        return f"{self.short}_outputs"

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The author's function takes exactly these keyword arguments."""
        vectors = (vector.name for vector in self.vectors)
        return ("inputs", self.inputs_argument, self.outputs_argument, *vectors)

    @property
    def required_names(self) -> tuple[str, ...]:
        """What a request has to carry."""
        return ("inputs",) if self.all_paths else self.argument_names

    @property
    def optional_names(self) -> tuple[str, ...]:
        """What a request may carry besides."""
        paths = (self.inputs_argument, self.outputs_argument) if self.all_paths else ()
        return (*paths, BATCHED) if self.takes_batches else paths


JACOBIAN = DerivativeKind(
    "jacobian", "jac", "Jacobian", "Jacobian", (), ("outputs", "inputs"), all_paths=True
)
JVP = DerivativeKind(
    "jacobian_vector_product", "jvp", "Jvp", "JVP", (TANGENT,), ("outputs",), takes_batches=True
)
VJP = DerivativeKind(
    "vector_jacobian_product", "vjp", "Vjp", "VJP", (COTANGENT,), ("inputs",), takes_batches=True
)
HVP = DerivativeKind(
    "hessian_vector_product", "hvp", "Hvp", "HVP", (COTANGENT, TANGENT), ("inputs",)
)
VALUE_AND_VJP = DerivativeKind(
    "value_and_vjp",
    "vjp",
    "ValueAndVjp",
    "ValueAndVJP",
    (COTANGENT,),
    ("inputs",),
    with_value=True,
)

FIRST_ORDER: tuple[DerivativeKind, ...] = (JACOBIAN, JVP, VJP)
DERIVATIVES: tuple[DerivativeKind, ...] = (*FIRST_ORDER, HVP, VALUE_AND_VJP)
