"""What can be asked of a site, as data, and which request answers a derivative of which.

A request is a form that is linear in each of its *slots*. Let f be the flat function, J(x) its Jacobian and
H(x) its second derivative:

    slots                 result     meaning                                        name
    ()                    outputs    f(x)                                           apply
    (inputs,)             outputs    J(x) v                                         jvp
    (outputs,)            inputs     J(x)ᵀ u                                        vjp
    (inputs, inputs)      outputs    H(x)[v, w]                                     second jvp
    (outputs, inputs)     inputs     H(x)ᵀ[u, w], the derivative of J(x)ᵀ u         hessian-vector product

Two rules generate the table, and with them every first and second derivative:

    along the primals   a new slot over the moving inputs is appended;
    transposition       a slot and the result change places (H is symmetric in its two input directions).

A `Jacobian` request returns all of J(x) at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from chainrule.bridge._site import Port, Site
from chainrule.bridge._types import ArrayType

Side = Literal["inputs", "outputs"]

_NAMES: dict[tuple[int, Side], str] = {
    (0, "outputs"): "apply",
    (1, "outputs"): "jvp",
    (1, "inputs"): "vjp",
    (2, "outputs"): "second_jvp",
    (2, "inputs"): "hvp",
}


@dataclass(frozen=True)
class Space:
    """Some of the arrays of one side, by position."""

    side: Side
    positions: tuple[int, ...]

    def ports(self, site: Site) -> tuple[Port, ...]:
        """The arrays themselves."""
        ports = site.inputs if self.side == "inputs" else site.outputs
        return tuple(ports[position] for position in self.positions)

    def paths(self, site: Site) -> tuple[str, ...]:
        """Their paths."""
        return tuple(port.path for port in self.ports(site))

    def types(self, site: Site) -> tuple[ArrayType, ...]:
        """Their types, which are also those of tangents and cotangents."""
        return tuple(port.type for port in self.ports(site))

    def size(self, site: Site) -> int:
        """Number of scalars."""
        return sum(type_.size for type_ in self.types(site))

    def keep(self, wanted: Sequence[bool]) -> Space:
        """The part of the space that is wanted."""
        kept = tuple(p for p, keep in zip(self.positions, wanted, strict=True) if keep)
        return Space(self.side, kept)


@dataclass(frozen=True)
class Request:
    """One row of the table in the module's docstring, restricted to some arrays.

    Attributes:
        slots: the spaces of the vectors that are given.
        result: the space of what comes back.
        columns: for the Jacobian only: the inputs; the result then is one block for every pair of
            `result` and `columns`, row by row, of shape output + input.
    """

    slots: tuple[Space, ...]
    result: Space
    columns: Space | None = None

    @property
    def name(self) -> str:
        """For messages, and the key of the routes in `_routes`."""
        if self.columns is not None:
            return "jacobian"
        key = (len(self.slots), self.result.side)
        return _NAMES.get(key, "third derivative")

    def result_types(self, site: Site) -> tuple[ArrayType, ...]:
        """The types of what comes back."""
        rows = self.result.types(site)
        if self.columns is None:
            return rows
        columns = self.columns.types(site)
        return tuple(ArrayType(r.shape + c.shape, r.dtype) for r in rows for c in columns)

    def along_primals(self, moving: Space) -> Request:
        """The derivative when the primals move."""
        return replace(self, slots=(*self.slots, moving))

    def transposed(self, slot: int, given: Space) -> Request:
        """The transpose with respect to one slot, for cotangents in part of the result's space."""
        slots = list(self.slots)
        result, slots[slot] = slots[slot], given
        # An hvp is written with its cotangent first.
        slots.sort(key=lambda space: space.side, reverse=True)
        return replace(self, slots=tuple(slots), result=result)


def apply_request(site: Site) -> Request:
    """All outputs."""
    return Request((), Space("outputs", tuple(range(len(site.outputs)))))


def jacobian_request(rows: Space, columns: Space) -> Request:
    """The blocks of the Jacobian for these outputs and inputs."""
    return Request((), rows, columns)
