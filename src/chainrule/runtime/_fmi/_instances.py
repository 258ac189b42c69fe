"""Instances of an FMU: their life, their variables and their state.

    Instances       the instances of one FMU: a call takes a free one, or makes one
    Instance        one of them, from its start to the next
    Access          some of its variables, read or written with one call of the FMU for each type

An instance in which a call failed is not used again. A failure is a `ComponentError` with what the FMU wrote
to its log. Calls at the same time have different instances, unless the FMU allows only one in a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from chainrule._errors import ComponentError, DefinitionError
from chainrule._files import Scratch
from chainrule.runtime._fmi._description import Description, Interface, Variable, split, total

_log = logging.getLogger(__name__)
_loading = threading.Lock()
"""FMPy changes the working folder, which all threads share, while it loads a library: one at a time."""
_LEVELS = (logging.DEBUG, logging.WARNING, logging.WARNING, logging.ERROR, logging.ERROR)
_WARNING, _FATAL = 1, 4
_MOST_ITERATIONS = 100
_KEPT_MESSAGES = 3


T = TypeVar("T")
Result = TypeVar("Result")


class Instances(Generic[T]):
    """The instances of one FMU.

    Args:
        description: of the FMU.
        interface: by which it is used.
        wrap: makes of each instance what a call uses.
    """

    def __init__(
        self, description: Description, interface: Interface, wrap: Callable[[Instance], T]
    ) -> None:
        self.description = description
        self.interface = interface
        self._wrap = wrap
        self._free: list[tuple[Instance, T]] = []
        self._folder: Path | None = None
        from fmpy.fmi1 import FMICallException

        self._call_error = FMICallException
        is_single = description.facts(interface).canBeInstantiatedOnlyOncePerProcess
        # Held for a whole call: such a library has one instance for all callers.
        self._turn: Any = threading.Lock() if is_single else contextlib.nullcontext()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What a function computes with an instance that nothing else uses meanwhile.

        Args:
            function: takes what was made of the instance, and the arguments.
            arguments: of the function.

        Raises:
            ComponentError: the FMU says that a call failed (`fmu_failed`).
            DefinitionError: it cannot be loaded (`bad_fmu`).
        """
        with self._turn:
            try:
                instance, used = self._free.pop()
            except IndexError:
                instance = self._make()
                used = self._wrap(instance)
            try:
                result = function(used, *arguments)
            except self._call_error as error:
                # After a fatal error FMI allows no further call, that which frees the instance included.
                if error.status < _FATAL:
                    instance.close()
                raise _failure(self.description, error, instance.messages) from error
            except BaseException:
                instance.close()
                raise
            self._free.append((instance, used))
            return result

    def _make(self) -> Instance:
        path = self.description.path
        # FMPy stays in the folder of a library that does not load.
        with _loading, contextlib.chdir("."):
            try:
                if self._folder is None:
                    self._folder = self._unpacked()
                return Instance(self.description, self.interface, str(self._folder))
            except Exception as error:
                raise DefinitionError(
                    f"{path} cannot be loaded: {error}", code="bad_fmu"
                ) from error

    def _unpacked(self) -> Path:
        """A folder with the files of the FMU, which goes with this object."""
        import fmpy

        scratch = Scratch("fmu")
        try:
            fmpy.extract(self.description.path, scratch.path)
        except BaseException:
            scratch.remove()
            raise
        weakref.finalize(self, _clean_up, self._free, scratch)
        return scratch.path


def _failure(description: Description, error: Any, messages: Iterable[str]) -> ComponentError:
    said = "; ".join(messages)
    hint = (
        " FMUs need not have derivatives by parameters; "
        'parameter_derivatives="differences" of from_fmu does without.'
        if error.function.endswith("Derivative")
        else ""
    )
    if not said and not description.debug_logging:
        hint = f"{hint} It does not say why; debug_logging=True of from_fmu lets it say more."
    return ComponentError(
        f"{description.path.name}: {error}{f' It says: {said}.' if said else ''}{hint}",
        code="fmu_failed",
        details={"function": error.function, "status": error.status, "log": said},
    )


def _clean_up(free: list[tuple[Instance, Any]], scratch: Scratch) -> None:
    for instance, _ in free:
        instance.close()
    scratch.remove()


class Event(NamedTuple):
    """What an update of discrete states has changed.

    Attributes:
        moved: whether continuous states have other values.
        next: when the next event is known to be; `None` if none is.
    """

    moved: bool
    next: float | None


class Instance:
    """One instance of an FMU.

    Attributes:
        fmu: FMPy's object.
        messages: the last that the FMU has logged since its last start.
    """

    def __init__(self, description: Description, interface: Interface, folder: str) -> None:
        from fmpy.fmi1 import FMICallException
        from fmpy.simulation import instantiate_fmu

        self._call_error = FMICallException
        self.description = description
        self.interface = interface
        self.messages: deque[str] = deque(maxlen=_KEPT_MESSAGES)
        kind = "ModelExchange" if interface == "model_exchange" else "CoSimulation"
        logger = self._log_2 if description.version == 2 else self._log_3
        self.fmu: Any = instantiate_fmu(
            folder,
            description.source,
            kind,
            debug_logging=description.debug_logging,
            logger=logger,
        )
        self.parameters = self.access(description.parameters)
        self.inputs = self.access(description.inputs)
        self.outputs = self.access(description.outputs)
        self.start_values = self.access(description.settable_states)
        self._is_fresh = True

    def function(self, name: str, *arguments: Any) -> Callable[..., None]:
        """A function of FMI such as `SetTime`, with its first arguments after the instance.

        It is called in the library itself: FMPy's own method would take as long again.
        """
        name = f"fmi{self.description.version}{name}"
        call = partial(getattr(self.fmu.dll, name), self.fmu.component, *arguments)

        def checked(*more: Any) -> None:
            status = call(*more)
            if status > _WARNING:
                raise self._call_error(name, status)

        return checked

    def access(self, variables: Sequence[Variable]) -> Access:
        """Some variables, to be read or written together."""
        return Access(self, variables)

    def start(
        self,
        time: float,
        parameters: Mapping[str, Any],
        states: Mapping[str, Any],
        inputs: Mapping[str, Any],
    ) -> Event:
        """Begin a simulation; what was simulated before is forgotten."""
        if not self._is_fresh:
            self.fmu.reset()
        self._is_fresh = False
        self.messages.clear()
        for access, values in (
            (self.parameters, parameters), (self.start_values, states), (self.inputs, inputs)
        ):  # fmt: skip
            access.write(values)
        if self.description.version == 2:
            self.fmu.setupExperiment(startTime=time)
            self.fmu.enterInitializationMode()
        else:
            self.fmu.enterInitializationMode(startTime=time)
        self.fmu.exitInitializationMode()
        return self.settle() if self.interface == "model_exchange" else Event(False, None)

    def settle(self) -> Event:
        """Update discrete states until they no longer change, and go on in continuous time."""
        moved = False
        for _ in range(_MOST_ITERATIONS):
            if self.description.version == 2:
                again, stops, _, changed, has_next, next_time = self.fmu.newDiscreteStates()
            else:
                again, stops, _, changed, has_next, next_time = self.fmu.updateDiscreteStates()
            moved = moved or bool(changed)
            if stops:
                raise self.failure("ends the simulation at an event", "fmu_stopped")
            if not again:
                self.fmu.enterContinuousTimeMode()
                return Event(moved, next_time if has_next else None)
        raise self.failure(
            f"has discrete states that still change after {_MOST_ITERATIONS} updates", "fmu_failed"
        )

    def do_step(self, time: float, length: float) -> None:
        """Let a co-simulation go on."""
        found = self.fmu.doStep(currentCommunicationPoint=time, communicationStepSize=length)
        if self.description.version == 3 and found[1]:
            raise self.failure(f"ends the simulation after {time:g}", "fmu_stopped")

    def failure(self, reason: str, code: str) -> ComponentError:
        """The error that an FMU causes without a failing call."""
        return ComponentError(f"{self.description.path.name} {reason}.", code=code)

    def saved(self) -> np.ndarray:
        """The state as bytes."""
        state = self.fmu.getFMUState()
        try:
            return np.frombuffer(self.fmu.serializeFMUState(state), np.uint8)
        finally:
            self.fmu.freeFMUState(state)

    def restore(self, saved: np.ndarray) -> None:
        """Go back to a state."""
        self._is_fresh = False
        self.messages.clear()
        state = self.fmu.deserializeFMUState(saved.tobytes())
        try:
            self.fmu.setFMUState(state)
        finally:
            self.fmu.freeFMUState(state)

    def close(self) -> None:
        """Give its memory back."""
        with contextlib.suppress(Exception):  # it may have failed before, in any way
            self.fmu.freeInstance()

    def _log_2(self, _: Any, __: Any, status: int, category: bytes, message: bytes) -> None:
        self._note(status, message)

    def _log_3(self, _: Any, status: int, category: bytes, message: bytes) -> None:
        self._note(status, message)

    def _note(self, status: int, message: bytes | None) -> None:
        text = (message or b"").decode(errors="replace").strip()
        self.messages.append(text)
        _log.log(_LEVELS[min(status, _FATAL)], "%s: %s", self.description.path.name, text)


class _Group:
    """Variables of one type, and memory for their values that the FMU reads and writes.

    What depends only on the variables is done once: a call moves values between this memory and theirs.
    """

    def __init__(self, instance: Instance, kind: str, variables: Sequence[Variable]) -> None:
        from fmpy import fmi3

        version = instance.description.version
        c_type: Any = _C_TYPES_2[kind] if version == 2 else getattr(fmi3, f"fmi3{kind}")
        self._values = (c_type * total(variables))()
        references = (ctypes.c_uint * len(variables))(*(v.reference for v in variables))
        counts = (len(self._values),) if version == 3 else ()
        arguments = (references, len(variables), self._values, *counts)
        self._get, self._set = (
            instance.function(f"{verb}{kind}", *arguments) for verb in ("Get", "Set")
        )
        self._texts = [v.field for v in variables if v.is_text]
        # The part of the memory that each variable has, in its shape.
        self._arrays: dict[str, np.ndarray] = {}
        if not self._texts:
            self._arrays = split(variables, np.ctypeslib.as_array(self._values))
        self._dtype = bool if kind == "Boolean" else None

    def write(self, values: Mapping[str, Any]) -> None:
        for field, part in self._arrays.items():
            part[...] = values[field]
        for place, field in enumerate(self._texts):
            self._values[place] = values[field].encode()
        self._set()

    def read(self) -> dict[str, Any]:
        self._get()
        if self._texts:
            texts = (value.decode(errors="replace") for value in self._values)
            return dict(zip(self._texts, texts, strict=True))
        return {field: np.array(part, self._dtype) for field, part in self._arrays.items()}


class Access:
    """Some variables of an instance, read or written with one call of the FMU for each type."""

    def __init__(self, instance: Instance, variables: Sequence[Variable]) -> None:
        by_kind: dict[str, list[Variable]] = {}
        for variable in variables:
            kind = _kind(variable, instance.description.version)
            by_kind.setdefault(kind, []).append(variable)
        self._groups = [_Group(instance, kind, group) for kind, group in by_kind.items()]

    def write(self, values: Mapping[str, Any]) -> None:
        """Set each variable to the value under its field."""
        for group in self._groups:
            group.write(values)

    def read(self) -> dict[str, Any]:
        """Field → value."""
        found: dict[str, Any] = {}
        for group in self._groups:
            found |= group.read()
        return found


def _kind(variable: Variable, version: int) -> str:
    """The type in the names of the functions that read and write a variable."""
    if variable.type == "Enumeration":
        return "Integer" if version == 2 else "Int64"
    return variable.type


_C_TYPES_2 = {
    "Real": ctypes.c_double,
    "Integer": ctypes.c_int,
    "Boolean": ctypes.c_int,
    "String": ctypes.c_char_p,
}
