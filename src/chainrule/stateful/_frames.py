"""Transactions: where the values of parameters live while a transformed function runs.

A transformation pushes a `Frame` that maps every tracked parameter to its (traced) value, runs the user's
function on the caller's own live objects, pops the frame, and hands the new values on. Reads and writes of
parameters go through the stack of frames of the current thread; the parameters' own storage is touched
only by a commit after success. From that one mechanism follow: sharing (an object is itself), nesting (a
deeper stack), exact exceptions (nothing to restore), and no tracer in a caller's object.

Rules, in the order in which they are applied:

    read    the topmost frame that tracks the parameter; else its own storage. A jitted frame is a barrier:
            its trace is kept and replayed, so a parameter from outside that it does not track is an error,
            not a constant that grows stale.
    write   the topmost frame must track the parameter, or the parameter must have been born in it, and the
            write must happen in the trace the frame belongs to. Anything else would leak or lose the value.

"Born in" is a comparison of serial numbers: frames and objects draw from one counter.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from chainrule._jaxpr import current_trace
from chainrule.stateful._errors import TrackingError
from chainrule.stateful._snapshots import same
from chainrule.stateful._values import conform, describe, same_type


class _Local(threading.local):
    """Per thread: the open frames."""

    stack: tuple[Frame, ...] = ()


local = _Local()
_serials = itertools.count(1)


def birth() -> int:
    """The serial number of the innermost open frame; 0 outside of all."""
    stack = local.stack
    return stack[-1].serial if stack else 0


class TypesChangedError(TrackingError):
    """A loop or a branch changed the type of a parameter.

    Attributes:
        is_from_none: whether the parameter was `None` before.
    """

    def __init__(self, error: TrackingError, *, is_from_none: bool) -> None:
        super().__init__(error.message, code=error.code, path=error.path, details=error.details)
        self.is_from_none = is_from_none


class MissingState(NamedTuple):
    """A state that is `None` in a trace, and how it is made.

    Attributes:
        slot: of the state.
        sources: the slots of the parameters it is made from, by their names.
        make: the state for `{name: value}` of those parameters.
    """

    slot: int
    sources: Mapping[str, int]
    make: Callable[[Any], Any]


class StateMissingError(BaseException):
    """A trace of `jit` needs a state that is `None`: `jit` makes it outside and traces again.

    It passes through the user's function, where an `except Exception` must not take it for a failed step.
    """

    def __init__(self, missing: MissingState) -> None:
        super().__init__(missing)
        self.missing = missing


class Frame:
    """The values of the parameters that one run of a transformed function tracks.

    Attributes:
        inventory: knows the paths of parameters, for messages.
        entry: the values at the start, by the identity of the parameter.
        values: the values now.
        written: identities of parameters that were set.
        statics: new values of tracked static parameters that were set.
        static_reads: identities of tracked static parameters that were read before they were set: what
            the run has depended on.
        is_barrier: whether the trace is kept and replayed (see the module's docstring).
    """

    __slots__ = (
        "entry",
        "inventory",
        "is_barrier",
        "serial",
        "static_reads",
        "statics",
        "trace",
        "values",
        "written",
    )  # fmt: skip

    def __init__(self, inventory: Any, values: Sequence[Any], is_barrier: bool) -> None:
        self.inventory = inventory
        self.entry = {
            id(param): _own(value) for param, value in zip(inventory.params, values, strict=True)
        }
        self.values = dict(self.entry)
        self.written: set[int] = set()
        self.statics: dict[int, Any] = {}
        self.static_reads: set[int] = set()
        self.is_barrier = is_barrier
        self.serial = next(_serials)
        self.trace = current_trace()

    def results(self) -> list[Any]:
        """The values of all tracked parameters, in the inventory's order."""
        return [self.values[id(param)] for param in self.inventory.params]

    def check_types_kept(self, where: str) -> None:
        """Raise where a loop or a branch would need one type before and after, and has two."""
        for param in self.inventory.params:
            old, new = self.entry[id(param)], self.values[id(param)]
            if id(param) in self.written and not same_type(old, new):
                error = _changed(
                    self.inventory.path_of(param), old, new, "structure_changed", where
                )
                raise TypesChangedError(error, is_from_none=old is None)


def _own(value: Any) -> Any:
    """Containers are rebuilt so that a tracer put into one cannot enter the caller's."""
    return value if isinstance(value, jax.Array) else jax.tree.map(lambda leaf: leaf, value)


@contextmanager
def enter(inventory: Any, values: Sequence[Any], *, is_barrier: bool = False) -> Iterator[Frame]:
    """Run the body on a new frame."""
    frame = Frame(inventory, values, is_barrier)
    outer = local.stack
    local.stack = (*outer, frame)
    try:
        yield frame
    finally:
        local.stack = outer


def make_outside(state: Any, sources: Mapping[str, Any], make: Callable[[Any], Any]) -> None:
    """Give a trace of `jit` up when a state is `None` that can be made before the program runs.

    A program takes a state as an input only if it is there when the trace begins. Made inside, it would be
    an output of one program and the input of a second one. It can be made outside if the parameters that it
    is made from still have the values they came with.

    Args:
        state: the parameter that is `None`.
        sources: the parameters that the state is made from, by name.
        make: the state for `{name: value}`.

    Raises:
        StateMissingError: to be caught by `jit`.
    """
    frame = local.stack[-1] if local.stack else None
    if frame is None or not frame.is_barrier:
        return
    slots = {id(param): slot for slot, param in enumerate(frame.inventory.params)}
    needed = {id(state), *map(id, sources.values())}
    if needed <= slots.keys() and not needed & frame.written:
        places = {name: slots[id(param)] for name, param in sources.items()}
        raise StateMissingError(MissingState(slots[id(state)], places, make))


def read(param: Any, stack: tuple[Frame, ...]) -> Any:
    """The value of a parameter as the innermost frame sees it."""
    key = id(param)
    for frame in reversed(stack):
        if key in frame.values:
            return frame.values[key]
        # Made inside of this frame: no frame further out can know it. Frames are numbered as they are opened
        # and objects get the number of the innermost one, so that is a comparison.
        if param._birth >= frame.serial:
            break
        if frame.is_barrier:
            raise _untracked_read(param, frame)
    return param._value


def write(param: Any, value: Any) -> None:
    """Set a parameter in the innermost frame, or in its own storage when there is none."""
    write_all([(param, value)])


def write_all(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Set several parameters, or none of them when one must not be set so."""
    stack = local.stack
    frame = stack[-1] if stack else None
    # Two passes: the list is complete, and every value admitted, before the first one is stored.
    for param, value in [(param, _admitted(param, value, frame)) for param, value in pairs]:
        if frame is not None and id(param) in frame.values:
            frame.values[id(param)] = value
            frame.written.add(id(param))
        else:
            param._value = value


def _admitted(param: Any, value: Any, frame: Frame | None) -> Any:
    """The value as it may be stored; raises where it may not."""
    if frame is not None and id(param) in frame.values:
        _guard_trace(param, value, frame.trace)
        return _fit(param, frame, value)
    if frame is not None and param._birth < frame.serial:
        raise _untracked_write(param, frame)
    _guard_trace(param, value, param._trace)
    return value


def _fit(param: Any, frame: Frame, value: Any) -> Any:
    old = frame.entry[id(param)]
    fits, fitted = conform(old, value)
    if fits:
        return fitted
    if type(param).keeps_type:
        raise _changed(
            frame.inventory.path_of(param), old, value, "value_changed", "a transformed function"
        )
    return value


def _guard_trace(node: Any, value: Any, trace: Any) -> None:
    """A plain `jax.*` transformation has no frame: a write under it would leak its tracer."""
    # A node may hold tracers of the trace in which it was made, or its frame opened. One of another trace
    # would outlive the transformation that made it.
    if trace == current_trace():
        return
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        raise TrackingError(
            f"A {type(node).__name__} that lives outside was changed inside a plain `jax.*` transformation, "
            "which cannot track it. Use the transformation of the same name from `chainrule.stateful` and "
            "pass what changes as a keyword argument; or pass its module by position, where it is a copy.",
            code="untracked_write",
        )


def read_static(param: Any) -> Any:
    """The value of a static parameter as the innermost frame sees it; the frames note that it was read."""
    key = id(param)
    for frame in reversed(local.stack):
        if key in frame.statics:
            return frame.statics[key]
        if frame.inventory.tracks_static(param):
            frame.static_reads.add(key)
        elif param._birth >= frame.serial:
            break
        elif frame.is_barrier:
            raise _untracked_read(param, frame)
    return param._value


def peek_static(param: Any) -> Any:
    """As `read_static`, for comparisons of structure: what is compared is not yet depended on."""
    key = id(param)
    frames = reversed(local.stack)
    return next((frame.statics[key] for frame in frames if key in frame.statics), param._value)


def write_static(param: Any, value: Any) -> None:
    """Set a static parameter; outside of all frames this counts as a change of structure."""
    stack = local.stack
    if not stack:
        if not same(param._value, value):
            param._value = value
            restructured(param)
        return
    frame = stack[-1]
    if frame.inventory.tracks_static(param):
        frame.statics[id(param)] = value
    elif param._birth >= frame.serial:
        param._value = value
    else:
        raise _untracked_write(param, frame)


def guard_edit(node: Any, what: str, new: Any = None) -> None:
    """Refuse a change of structure inside a frame, unless the object was made there.

    Args:
        node: what is changed.
        what: the change, for the message.
        new: what is put into it; without a frame, it must not hold a tracer of a plain `jax.*` function.
    """
    stack = local.stack
    if not stack:
        _guard_trace(node, new, node._trace)
    elif node._birth < stack[-1].serial:
        raise structure_edited(what)


def structure_edited(what: str) -> TrackingError:
    """The error for a change of structure inside a transformed function."""
    return TrackingError(
        f"{what} inside a transformed function: the structure of a model is fixed there, because the "
        "change would be lost when compiled code runs again. Set values with `param.set(...)`, keep "
        "changeable options in `static(...)`, and add or remove attributes outside.",
        code="structure_changed",
    )


class StructureWatch:
    """Tells whether the structure of some nodes has changed since the watch began.

    A node refers to its watches weakly, so a model holds on to no jitted function that it was used with.
    """

    __slots__ = ("__weakref__", "is_stale")

    def __init__(self, nodes: Iterable[Any]) -> None:
        self.is_stale = False
        mine = weakref.ref(self)
        with _watching:
            for node in nodes:
                watches = (*(watch for watch in node._watches if watch() is not None), mine)
                object.__setattr__(node, "_watches", watches)


# Of `_watches` of all nodes: a watch that is added while another thread takes them away must not be lost.
_watching = threading.Lock()


def restructured(node: Any) -> None:
    """Note that an object's structure changed."""
    if node._watches:
        with _watching:
            watches = node._watches
            object.__setattr__(node, "_watches", ())
        for reference in watches:
            watch = reference()
            if watch is not None:
                watch.is_stale = True


def _untracked_read(param: Any, frame: Frame) -> TrackingError:
    return TrackingError(
        f"A {type(param).__name__} {describe(param._value)} was read inside a jitted function that does not "
        f"track it. Its value would be frozen into the compiled code. Pass it, or the module that holds it, "
        f"as a keyword argument. {_tracked_here(frame)}",
        code="untracked_read",
    )


def _untracked_write(param: Any, frame: Frame) -> TrackingError:
    return TrackingError(
        f"A {type(param).__name__} {describe(param._value)} was set inside a transformed function that "
        f"does not track it. Pass it, or the module that holds it, as a keyword argument (positional "
        f"arguments are copies). {_tracked_here(frame)}",
        code="untracked_write",
    )


def _tracked_here(frame: Frame) -> str:
    names = frame.inventory.names
    return f"Tracked here: {', '.join(f'`{name}`' for name in names) if names else 'nothing'}."


def _changed(path: str, old: Any, new: Any, code: str, where: str) -> TrackingError:
    return TrackingError(
        f"Parameter `{path}` entered {where} as {describe(old)} and was set to {describe(new)}. Shape, "
        "dtype and structure stay the same there; change them outside, or cast the new value.",
        code=code,
        path=path,
        details={"expected": describe(old), "found": describe(new)},
    )
