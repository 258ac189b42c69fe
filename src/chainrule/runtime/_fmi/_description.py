"""What the model description of an FMU says, and the schemas that follow from it.

Names of variables (`body.r[1]`, `der(x)`) become fields (`body_r_1`, `der_x`); a field's description has the
name. `start` is the default, `min` and `max` are bounds that hold for what a caller gives, units are kept
where pint reads them. Variables of the types Binary and Clock, and arrays of text, are left out.
"""

from __future__ import annotations

import logging
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
from pydantic import Field

from chainrule._doors import as_identifier
from chainrule._errors import DefinitionError, missing_dependency
from chainrule.runtime._component._definition import hash_files
from chainrule.runtime._schema import Bounds, array_type
from chainrule.runtime._schema._spec import known_units, make_spec

_log = logging.getLogger(__name__)

Interface = Literal["model_exchange", "co_simulation"]

# Type of a variable → dtype of its array.
_DTYPES = {
    "Real": "float64",
    "Float64": "float64",
    "Float32": "float32",
    "Integer": "int32",
    "Enumeration": "int64",
    "Boolean": "bool",
    **{f"{sign}Int{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}  # fmt: skip
FLOATS = ("Real", "Float64", "Float32")
_EXPERIMENT = ("startTime", "stopTime", "stepSize", "tolerance")


@dataclass(frozen=True, eq=False)
class Variable:
    """One variable of an FMU.

    Attributes:
        name: in the model description.
        field: its name in schemas.
        reference: the number by which FMI knows it.
        type: of FMI, for example `Real`.
        shape: of its value.
        start: its value before a simulation; `None` if the FMU computes it.
        continuous: whether it may change at any time, and derivatives make sense.
        units: that pint reads.
        bounds: `ge`, `le` of what a caller gives.
        description: for people.
        nominal: its usual size.
    """

    name: str
    field: str
    reference: int
    type: str
    shape: tuple[int, ...]
    start: Any
    continuous: bool
    units: str | None
    bounds: tuple[tuple[str, float], ...]
    description: str
    nominal: float = 1.0

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_text(self) -> bool:
        """Whether its value is a string."""
        return self.type == "String"

    def annotation(self, *leading: str, bounded: bool = False) -> Any:
        """The type of a field with this value, or with one value for each entry of leading dimensions."""
        if self.is_text:
            return list[str] if leading else str
        more = [Bounds(**dict(self.bounds))] if bounded and self.bounds else []
        spec = make_spec((*leading, *self.shape), _DTYPES[self.type], self.units, *more)
        return array_type(spec.with_differentiable() if self.continuous else spec)

    def given(self, *, bounded: bool = True) -> tuple[Any, Any]:
        """A field that a caller gives; its default is the start value, if there is one."""
        default = ... if self.start is None else self.start
        return self.annotation(bounded=bounded), Field(default, description=self.description)


@dataclass(frozen=True)
class Description:
    """An FMU before it is loaded.

    Attributes:
        path: of the file.
        source: FMPy's reading of the model description.
        parameters: that a caller may set.
        inputs: that may vary with time.
        outputs: that are reported.
        states: continuous states, in the order of the FMU.
        rates: the derivative of each state, under the field of the state.
        directional: whether the FMU multiplies with the Jacobian.
        adjoint: whether the FMU multiplies with the transposed Jacobian.
        experiment: the numbers of the default experiment; `None` for those that it does not have.
        debug_logging: whether the FMU is asked to log all that it does.
    """

    path: Path
    source: Any
    parameters: tuple[Variable, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    states: tuple[Variable, ...]
    rates: tuple[Variable, ...]
    directional: bool
    adjoint: bool
    experiment: Mapping[str, float | None]
    debug_logging: bool

    @property
    def version(self) -> int:
        """Of FMI: 2 or 3."""
        return int(self.source.fmiVersion[0])

    @property
    def indicators(self) -> int:
        """The number of event indicators."""
        declared = sum(math.prod(u.variable.shape or ()) for u in self.source.eventIndicators)
        return declared or int(self.source.numberOfEventIndicators or 0)

    @cached_property
    def settable_states(self) -> tuple[Variable, ...]:
        """States whose start value a caller may give."""
        return tuple(state for state in self.states if state.start is not None)

    def facts(self, interface: Interface) -> Any:
        """What the FMU says about one of its interfaces."""
        return (
            self.source.modelExchange if interface == "model_exchange" else self.source.coSimulation
        )

    def content_hash(self) -> str:
        """Changes when the file does."""
        return hash_files([("fmu", self.path)])


def read_description(
    path: Path,
    *,
    parameters: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    debug_logging: bool = False,
) -> Description:
    """Read the model description of an FMU; none of its code runs.

    Args:
        path: of the FMU.
        parameters: names of those that a caller may set; all by default.
        outputs: names of the variables to report; the outputs of the FMU by default.
        debug_logging: whether the FMU will be asked to log all that it does.

    Raises:
        DefinitionError: the file is no FMU of FMI 2 or 3 (`bad_fmu`), or has no such variable.
    """
    source, flags = _read(path)
    for option, names in (("parameters", parameters), ("outputs", outputs)):
        if isinstance(names, str):
            raise DefinitionError(
                f"Expected {option} as a list of names; found {names!r}. Write [{names!r}].",
                code="bad_option",
            )
    try:
        return _described(path, source, flags, parameters, outputs, debug_logging)
    except DefinitionError:  # a ValueError, too
        raise
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise _bad(path, f"has a model description that cannot be used: {error}") from error


def _described(
    path: Path,
    source: Any,
    flags: Mapping[str, str],
    parameters: Sequence[str] | None,
    outputs: Sequence[str] | None,
    debug_logging: bool,
) -> Description:
    usable = {
        v.name: v
        for v in source.modelVariables
        if v.type in _DTYPES or (v.type == "String" and not v.dimensions)
    }
    left_out = [
        v.name
        for v in source.modelVariables
        if v.name not in usable and v.causality in ("input", "output")
    ]
    if left_out:
        _log.warning("%s: left out, for their types: %s", path.name, ", ".join(left_out))
    by_causality = {
        kind: [v for v in usable.values() if v.causality == kind and v.variability != "constant"]
        for kind in ("parameter", "input", "output")
    }
    rates = [unknown.variable for unknown in source.derivatives]
    states = _variables(rate.derivative for rate in rates)
    return Description(
        path=path,
        source=source,
        parameters=_variables(_chosen(usable, parameters, by_causality["parameter"], path)),
        inputs=_variables(by_causality["input"]),
        outputs=_variables(_chosen(usable, outputs, by_causality["output"], path)),
        states=states,
        rates=tuple(map(_rate, states, rates)),
        directional=any(flags.get(f"providesDirectionalDerivative{s}") == "true" for s in ("", "s")),
        adjoint=flags.get("providesAdjointDerivatives") == "true",
        experiment={name: _number(source.defaultExperiment, name) for name in _EXPERIMENT},
        debug_logging=debug_logging,
    )  # fmt: skip


def _number(found: Any, name: str) -> float | None:
    text = getattr(found, name, None)
    return None if text is None else float(text)


def _read(path: Path) -> tuple[Any, dict[str, str]]:
    """FMPy's model description, and the attributes of model exchange, some of which FMPy does not read."""
    try:
        import fmpy
    except ImportError as error:
        raise missing_dependency("FMUs need", error.name, "'chainrule[fmi]'") from error
    try:
        source = fmpy.read_model_description(str(path), validate=False)
        with zipfile.ZipFile(path) as archive:
            root = ElementTree.fromstring(archive.read("modelDescription.xml"))
        platforms = fmpy.supported_platforms(str(path))
    except FileNotFoundError:
        raise _bad(path, "does not exist") from None
    except zipfile.BadZipFile:
        raise _bad(path, "is not an archive") from None
    except KeyError as error:
        raise _bad(path, "has no modelDescription.xml") from error
    except Exception as error:
        raise _bad(path, f"has a model description that cannot be read: {error}") from error
    if source.fmiVersion[:1] not in ("2", "3"):
        raise _bad(path, f"is of FMI {source.fmiVersion}; FMI 2 and 3 are supported")
    if fmpy.platform not in platforms:
        found = ", ".join(platforms) or "no platform"
        raise _bad(path, f"has no binary for this platform ({fmpy.platform}); it has {found}")
    exchange = root.find("ModelExchange")
    return source, {} if exchange is None else dict(exchange.attrib)


def _bad(path: Path, reason: str) -> DefinitionError:
    return DefinitionError(f"{path} {reason}.", code="bad_fmu")


def _chosen(
    usable: dict[str, Any], names: Sequence[str] | None, otherwise: list[Any], path: Path
) -> list[Any]:
    if names is None:
        return otherwise
    unknown = [name for name in names if name not in usable]
    if unknown:
        raise DefinitionError(
            f"{path.name} has no variable {unknown[0]!r}; it has {', '.join(list(usable)[:20])}.",
            code="bad_fmu",
        )
    return [usable[name] for name in names]


def _variables(found: Iterable[Any]) -> tuple[Variable, ...]:
    found = list(found)
    return tuple(map(_variable, found, field_names([v.name for v in found])))


def _variable(v: Any, field: str) -> Variable:
    # What a variable does not say, its declared type may.
    limits = {
        word: getattr(v, name) or getattr(v.declaredType, name, None)
        for word, name in (("ge", "min"), ("le", "max"))
    }
    is_number = v.type in _DTYPES and v.type != "Boolean"
    shape = tuple(v.shape or ())
    described = v.description or v.name
    return Variable(
        name=v.name,
        field=field,
        reference=v.valueReference,
        type=v.type,
        shape=shape,
        start=_start(v, shape),
        continuous=v.type in FLOATS and v.variability != "discrete",
        units=known_units(v.unit or getattr(v.declaredType, "unit", None)),
        bounds=tuple((w, float(limit)) for w, limit in limits.items() if limit and is_number),
        description=described if field == v.name else f"{described} ({v.name})",
        nominal=abs(float(v.nominal or 1.0)) or 1.0,
    )


def _rate(state: Variable, rate: Any) -> Variable:
    units = known_units(rate.unit or getattr(rate.declaredType, "unit", None))
    described = f"derivative of {state.name}"
    return replace(state, reference=rate.valueReference, units=units, description=described)


def _start(v: Any, shape: tuple[int, ...]) -> Any:
    if v.start is None or v.type == "String":
        return v.start
    read = {"Boolean": lambda word: word in ("true", "1")}.get(
        v.type, float if v.type in FLOATS else int
    )
    values = np.array([read(word) for word in str(v.start).split()], _DTYPES[v.type])
    # The start value of a scalar is one itself: pydantic copies a default that is an array for every call.
    return np.full(shape, values[0])[()] if values.size == 1 else values.reshape(shape)


def field_names(names: Sequence[str]) -> list[str]:
    """A field for each name of a variable, all different."""
    fields: list[str] = []
    for name in names:
        field = base = as_identifier(name) or "variable"
        if not base[0].isalpha() or base.startswith("model_"):
            field = base = f"v_{base}"
        count = 1
        while field in fields:
            count += 1
            field = f"{base}_{count}"
        fields.append(field)
    return fields


def total(variables: Iterable[Variable]) -> int:
    """The number of elements of some variables."""
    return sum(variable.size for variable in variables)


def joined(variables: Sequence[Variable], values: Mapping[str, Any]) -> np.ndarray:
    """Values by field as one vector."""
    parts = [values[variable.field] for variable in variables]
    if len(parts) == 1:  # most FMUs have their states in one array, or one state
        return np.array(parts[0], float).ravel()
    return np.concatenate(parts, axis=None, dtype=float) if parts else np.zeros(0)


def pieces(variables: Sequence[Variable], vector: np.ndarray) -> list[np.ndarray]:
    """The part of a vector that belongs to each variable; leading axes of the vector are kept."""
    found, begin = [], 0
    for variable in variables:
        found.append(vector[..., begin : begin + variable.size])
        begin += variable.size
    return found


def split(variables: Sequence[Variable], vector: np.ndarray) -> dict[str, np.ndarray]:
    """The same as values by field."""
    parts = zip(variables, pieces(variables, vector), strict=True)
    return {v.field: part.reshape((*part.shape[:-1], *v.shape)) for v, part in parts}
