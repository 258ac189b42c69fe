"""What a derivative endpoint is, as data.

Jacobian, Jacobian-vector product and vector-Jacobian product differ in three facts: what the caller
gives beside the inputs, what comes back, and over which paths. Everything that is done for all three
(schemas, validation, derivation, command line, client methods) is written once over these descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DERIVATIVES", "JACOBIAN", "JVP", "VJP", "DerivativeKind"]

Side = Literal["inputs", "outputs"]


@dataclass(frozen=True)
class DerivativeKind:
    """One of the three first-order derivative endpoints.

    Attributes:
        endpoint: name of the endpoint and of the author's function.
        short: prefix of its path arguments and its command-line alias: `jac_inputs`, `jvp_outputs`, ….
        model_prefix: prefix of the generated models (`Jvp_InputSchema`).
        schema_prefix: prefix of the request and response wrappers (`JVPInputSchema`).
        vector: name of the vector argument, or `None` for the Jacobian.
        vector_over: which side's paths the vector's keys are.
        result_over: the sides whose paths key the result, outermost first. A result's shape is the
            concatenation of the shapes at these paths.
    """

    endpoint: str
    short: str
    model_prefix: str
    schema_prefix: str
    vector: str | None
    vector_over: Side | None
    result_over: tuple[Side, ...]

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
        names = ("inputs", self.inputs_argument, self.outputs_argument)
        return names if self.vector is None else (*names, self.vector)


JACOBIAN = DerivativeKind(
    "jacobian", "jac", "Jacobian", "Jacobian", None, None, ("outputs", "inputs")
)
JVP = DerivativeKind(
    "jacobian_vector_product", "jvp", "Jvp", "JVP", "tangent_vector", "inputs", ("outputs",)
)
VJP = DerivativeKind(
    "vector_jacobian_product", "vjp", "Vjp", "VJP", "cotangent_vector", "outputs", ("inputs",)
)

DERIVATIVES: tuple[DerivativeKind, ...] = (JACOBIAN, JVP, VJP)
