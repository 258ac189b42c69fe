"""`jit`: one compiled program per structure, and as little as possible in front of it.

What happens on a call, when nothing but values has changed since an earlier one: recognise the keyword
arguments by identity, gather the parameters' values into a list, call one `jax.jit`, store what comes back.
Modules are not walked and no object is rebuilt.

    binding    the flat parameter list of these very objects; valid until their structure changes. It does
               not hold the objects themselves, so a jitted function keeps no model alive
    program    a `jax.jit` for all keyword arguments of equal structure. Its first, static argument are the
               caller's objects, on which the user's function runs when JAX traces it; its second are the
               flat values
    output     (result, new values, notes). Notes say which slots the values belong to, what static
               parameters were set to, and whether live objects are returned. They are part of the output's
               structure: every specialisation of a program describes itself, at no cost

A program depends on the static parameters that the function reads before it sets them, and on no others: a
function that begins with `model.train()` is one program, and the mode in which the model comes does not
matter. Which ones are read shows in the first trace. JAX traces a program again for other shapes, and that
trace may read more; it is then given up (`_ReadsMoreError`), before anything has run, and another program,
which depends on more, takes the call. In the same way the trace that finds the state of an optimiser missing
is given up (`StateMissingError`): the state is made outside, and one program takes it from the first call on.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, reshard

from chainrule._errors import InputError
from chainrule._jaxpr import NO_TRACE, trace_state
from chainrule.stateful._call import (
    Inventory,
    Transformation,
    decorator,
    execute,
    keyword_of,
    name_of,
    plain_values,
)
from chainrule.stateful._frames import (
    MissingState,
    StateMissingError,
    StructureWatch,
    local,
    make_outside,
    write_all,
)
from chainrule.stateful._masks import resolve_mask
from chainrule.stateful._nodes import has_identity
from chainrule.stateful._snapshots import Snapshot
from chainrule.stateful._values import is_arraylike
from chainrule.stateful._walk import flatten


class _Objects:
    """The caller's keyword arguments, as the static argument of a program.

    JAX keeps static arguments as long as the program, so nodes are referred to weakly: the caller holds
    them. Plain arrays are inputs of the program; a number stands in their places. The objects of all calls
    of one program have the same structure, and are equal.
    """

    __slots__ = ("_leaves", "_treedef")

    def __init__(self, kwargs: Mapping[str, Any], inventory: Inventory) -> None:
        leaves, self._treedef = jax.tree.flatten(dict(kwargs), is_leaf=has_identity)
        plain = set(inventory.plain)
        self._leaves = [
            0 if i in plain else weakref.ref(leaf) if has_identity(leaf) else leaf
            for i, leaf in enumerate(leaves)
        ]

    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, while the call is being made."""
        leaves = [leaf() if isinstance(leaf, weakref.ref) else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._treedef, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Objects)

    def __hash__(self) -> int:
        return hash(_Objects)


@jax.tree_util.register_static
class _Notes:
    """What is known about a run when it is traced.

    Attributes:
        slots: the slots that were written.
        static_writes: what static parameters were set to, by their position.
        returns_live: whether the result refers to the caller's own objects.
        is_plain: whether there is nothing to do but to store the values.
    """

    __slots__ = ("_key", "is_plain", "returns_live", "slots", "static_writes")

    def __init__(
        self, slots: tuple[int, ...], static_writes: dict[int, Any], returns_live: bool
    ) -> None:
        self.slots = slots
        self.static_writes = static_writes
        self.returns_live = returns_live
        self.is_plain = not (static_writes or returns_live)
        self._key = (slots, Snapshot(static_writes), returns_live)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Notes) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class _ReadsMoreError(Exception):
    """A trace of a program has read static parameters that the program does not depend on."""

    def __init__(self, reads: frozenset[int]) -> None:
        super().__init__(reads)
        self.reads = reads


class Program:
    """One `jax.jit` for all keyword arguments of equal structure.

    Args:
        owner: the jitted function.
        inventory: any inventory with that structure.
        arity: number of positional arguments.
        reads: positions of the static parameters it may depend on; those that its first trace reads, if
            not given.
    """

    __slots__ = ("_empty", "_missing", "_owner", "call", "donated", "kept", "reads", "statics")

    def __init__(
        self, owner: Jit, inventory: Inventory, arity: int, reads: frozenset[int] | None = None
    ) -> None:
        self._owner = owner
        self.statics = inventory.static_values()
        self.reads = reads
        is_empty = resolve_mask(owner.options["empty"], inventory, False)
        self._empty = tuple(slot for slot, chosen in enumerate(is_empty) if chosen)
        self._missing: dict[int, MissingState] = {}
        self.donated: tuple[int, ...] = ()
        self.kept = tuple(range(len(inventory.paths)))
        self.call = jax.jit(self._flat(), **_flat_options(owner.options, inventory, arity))

    def fits(self, statics: Sequence[Snapshot]) -> bool:
        """Whether it can run with these values of the static parameters."""
        places = range(len(statics)) if self.reads is None else self.reads
        return all(self.statics[place] == statics[place] for place in places)

    def begin(self, values: list[Any]) -> list[Any]:
        """The values of all slots as the program takes them: `None` for those that begin empty."""
        for slot in self._empty:
            values[slot] = None
        return values

    def donating(self, slots: Collection[int], inventory: Inventory, arity: int) -> Program:
        """This program, with the buffers of some slots given away. It always returns new values for them."""
        program = Program(self._owner, inventory, arity, self.reads)
        program.donated = tuple(slots)
        program.kept = tuple(slot for slot in self.kept if slot not in program.donated)
        # The flat function gets kept values, then donated ones. `order` is the inverse of that arrangement:
        # its entry k is the place among them of slot k.
        order = sorted(range(len(self.kept)), key=[*program.kept, *slots].__getitem__)

        def flat(objects: _Objects, kept: list[Any], donated: list[Any], *args: Any) -> Any:
            given = [*kept, *donated]
            values = [given[place] for place in order]
            # Retracing already, when the slots were looked for.
            result, written, notes = self.call(objects, values, *args)
            new = dict(zip(slots, donated, strict=True)) | dict(
                zip(notes.slots, written, strict=True)
            )
            notes = _Notes(tuple(new), notes.static_writes, notes.returns_live)
            return result, list(new.values()), notes

        flat.__name__ = flat.__qualname__ = name_of(self._owner.fun)
        options = _flat_options(self._owner.options, inventory, arity, program.donated)
        program.call = jax.jit(flat, **options)
        return program

    def arrange(self, values: list[Any]) -> tuple[list[Any], list[Any]]:
        """The values as a donating program takes them: kept ones, then donated ones."""
        kept = [values[slot] for slot in self.kept]
        donated = [values[slot] for slot in self.donated]
        leaves = jax.tree.leaves(values)
        if len(set(map(id, leaves))) < len(leaves):
            donated = _without_repetition(kept, donated)
        return kept, donated

    def _flat(self) -> Callable[..., Any]:
        owner = self._owner

        def flat(objects: _Objects, values: list[Any], *args: Any) -> Any:
            inventory = owner.inventory(objects.kwargs())
            for slot, missing in self._missing.items():
                if (
                    values[slot] is None
                ):  # known from an earlier trace, of a state that was reset since
                    raise StateMissingError(missing)
            try:
                result, frame, returns_live = execute(
                    inventory, owner.fun, values, args, is_barrier=True
                )
            except StateMissingError as error:
                self._missing[error.missing.slot] = error.missing
                raise
            self._note_reads(frozenset(inventory.positions(frame.static_reads)))
            new = _constrain(frame.results(), owner.options["kwargs_shardings"], inventory)
            # What came in empty goes out as it is now, also if the function has not set it.
            slots = tuple(sorted({*inventory.slots_of(frame.written), *self._empty}))
            notes = _Notes(slots, inventory.static_writes(frame.statics), returns_live)
            return result, [new[slot] for slot in slots], notes

        flat.__name__ = flat.__qualname__ = name_of(owner.fun)
        return flat

    def _note_reads(self, reads: frozenset[int]) -> None:
        if self.reads is None:
            self.reads = reads
        elif not reads <= self.reads:
            raise _ReadsMoreError(reads | self.reads)


def _without_repetition(kept: list[Any], donated: list[Any]) -> list[Any]:
    """A buffer can be given away once, and only if no other slot needs it: the others get copies."""
    seen = set(map(id, jax.tree.leaves(kept)))

    def own(leaf: Any) -> Any:
        is_taken = id(leaf) in seen
        seen.add(id(leaf))
        return jnp.copy(leaf) if is_taken else leaf

    return jax.tree.map(own, donated)


def _constrain(values: list[Any], mask: Any, inventory: Inventory) -> list[Any]:
    """A parameter with a sharding keeps it."""
    if mask is None:
        return values
    shardings = resolve_mask(mask, inventory, None)[: len(values)]
    return [_place(value, sharding) for value, sharding in zip(values, shardings, strict=True)]


def _place(value: Any, sharding: Any) -> Any:
    if sharding is None:
        return value
    if AxisType.Explicit in sharding.mesh.axis_types:
        return reshard(value, sharding)
    return jax.lax.with_sharding_constraint(value, sharding)


def _flat_options(
    options: Mapping[str, Any], inventory: Inventory, arity: int, donated: tuple[int, ...] = ()
) -> dict[str, Any]:
    """The options of `jax.jit` for a flat function, whose first two or three arguments are ours."""
    offset = 3 if donated else 2

    def shifted(argnums: Any) -> tuple[int, ...]:
        named = [num + arity if num < 0 else num for num in _as_tuple(argnums)]
        # An argument that is not passed, or passed by its name, is not an argument of the flat function.
        return tuple(offset + num for num in named if 0 <= num < arity)

    flat: dict[str, Any] = {
        "static_argnums": (0, *shifted(options["static_argnums"])),
        "donate_argnums": (*((2,) if donated else ()), *shifted(options["donate_argnums"])),
        "keep_unused": options["keep_unused"],
        "inline": options["inline"],
        "compiler_options": options["compiler_options"],
    }
    ins, outs, mask = (options[k] for k in ("in_shardings", "out_shardings", "kwargs_shardings"))
    if ins is not None or mask is not None:
        per_slot = resolve_mask(mask, inventory, None)
        kept = [sharding for slot, sharding in enumerate(per_slot) if slot not in donated]
        given = [[per_slot[slot] for slot in donated]] if donated else []
        user = ins if isinstance(ins, (tuple, list)) else (ins,) * arity
        flat["in_shardings"] = (kept, *given, *user)
    if outs is not None:
        flat["out_shardings"] = (outs, None, None)
    return flat


def _as_tuple(x: Any) -> tuple[Any, ...]:
    if x is None:
        return ()
    return (x,) if isinstance(x, (int, str)) else tuple(x)


class _Binding:
    """A program and the storage of the parameters it runs on, outside of all transformations.

    Attributes:
        program: the program.
        objects: the keyword arguments, referred to weakly.
        roots: weak references that remove this binding when a keyword argument dies.
    """

    __slots__ = (
        "_arity", "_cells", "_count", "_editable", "_identities", "_plain", "_statics", "_watch",
        "call", "objects", "program", "roots",
    )  # fmt: skip

    def __init__(
        self,
        inventory: Inventory,
        program: Program,
        arity: int,
        kwargs: Mapping[str, Any],
        roots: Any,
    ) -> None:
        structure = inventory.structure
        self.program = program
        self.call = program.call
        self.objects = _Objects(kwargs, inventory)
        self.roots = roots
        self._arity = arity
        self._count = len(kwargs)
        self._identities = [(name, id(value)) for name, value in kwargs.items()]
        self._cells = [param._cell for param in inventory.params]
        self._plain = inventory.plain
        self._statics = [weakref.ref(static) for static in inventory.statics]
        held = [static for static in inventory.static_values() if static.is_editable]
        self._editable = [*structure.editable, *held]
        self._watch = StructureWatch(filter(has_identity, structure.nodes))
        # Edits of containers that are not ours go unnoticed: a binding of such objects serves one call.
        self._watch.is_stale = structure.has_foreign

    def is_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether it can serve a call: made for these very objects, current, and not nested."""
        # In the order of what fails soonest. Identities are compared, not equality: a parameter answers `==`
        # element by element. An object that died may have given its identity to another one, but then its
        # weak reference has removed this binding (`roots`).
        if local.stack or trace_state.value is not NO_TRACE:
            return False
        if self._watch.is_stale or len(kwargs) != self._count or len(args) != self._arity:
            return False
        for name, identity in self._identities:
            if id(kwargs.get(name)) != identity:
                return False
        return not self._editable or self.is_current()

    def is_current(self) -> bool:
        """Whether the objects have the structure that they had when it was made."""
        return not self._watch.is_stale and all(static.is_current for static in self._editable)

    def inputs(self, kwargs: Mapping[str, Any]) -> tuple[list[Any], ...]:
        """What the program takes between the objects and the positional arguments."""
        values = [cell.value for cell in self._cells]
        if self._plain:
            values += plain_values(self._plain, kwargs)
        values = self.program.begin(values)
        return self.program.arrange(values) if self.program.donated else (values,)

    def store(self, new: list[Any], notes: _Notes) -> None:
        """Store what was written."""
        cells = self._cells
        for place, slot in enumerate(notes.slots):
            cells[slot].value = new[place]

    def finish(self, notes: _Notes, result: Any) -> Any:
        """Set static parameters; returns the result with the caller's own objects in it."""
        for place, value in notes.static_writes.items():
            static: Any = self._statics[place]()
            static.set(value)
        return Inventory(self.objects.kwargs()).attach(result) if notes.returns_live else result


class _NestedBinding:
    """A program inside another transformed function: values come from frames and go back into them.

    A plain `jax.*` function has no frame; what would put its tracer into a parameter is refused.
    """

    __slots__ = ("_inventory", "call", "objects", "program")

    def __init__(self, inventory: Inventory, program: Program, objects: _Objects) -> None:
        self._inventory = inventory
        self.program = program
        self.call = program.call
        self.objects = objects

    def inputs(self, kwargs: Mapping[str, Any]) -> tuple[list[Any], ...]:
        return (self.program.begin(self._inventory.read(kwargs)),)

    def store(self, new: list[Any], notes: _Notes) -> None:
        params, statics = self._inventory.params, self._inventory.statics
        for place in self.program.reads or ():
            statics[place].get()  # what the program depends on, the function around it depends on
        write_all(zip((params[slot] for slot in notes.slots), new, strict=True))

    def finish(self, notes: _Notes, result: Any) -> Any:
        self._inventory.commit_statics(notes.static_writes)
        return self._inventory.attach(result) if notes.returns_live else result


class Lowered:
    """A lowered function; everything `jax.stages.Lowered` has, and `compile` that keeps tracking."""

    def __init__(self, owner: Jit, lowered: Any) -> None:
        self._owner = owner
        self._lowered = lowered

    def compile(self, **options: Any) -> Compiled:
        """Compile for the arguments it was lowered for."""
        return Compiled(self._owner, self._lowered.compile(**options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


class Compiled:
    """A compiled function; call it like the function, without its static arguments."""

    def __init__(self, owner: Jit, compiled: Any) -> None:
        self._owner = owner
        self._compiled = compiled

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        binding = self._owner._bind(args, kwargs)
        result, new, notes = self._compiled(*binding.inputs(kwargs), *args)
        binding.store(new, notes)
        return binding.finish(notes, result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


class Jit(Transformation):
    """A compiled function; see `jit`."""

    def __init__(self, fun: Callable[..., Any], **options: Any) -> None:
        super().__init__(fun, **options)
        self.fun = fun
        nums, self._static_names = _static_arguments(
            fun, _as_tuple(options["static_argnums"]), _as_tuple(options["static_argnames"])
        )
        self.options = {**options, "static_argnums": nums}
        self._bindings: dict[Any, _Binding] = {}
        self._last: _Binding | None = None
        self._programs: dict[Any, list[Program]] = {}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            binding: Any = self._last
            if binding is None or not binding.is_for(args, kwargs):
                binding = self._bind(args, kwargs)
            result, new, notes = binding.call(binding.objects, *binding.inputs(kwargs), *args)
        except _ReadsMoreError as more:
            self._depend_on_more(more.reads, args, kwargs)
        except StateMissingError as error:
            self._make_state(error.missing, kwargs)
        else:
            binding.store(new, notes)
            return result if notes.is_plain else binding.finish(notes, result)
        return self(*args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """Lower for these arguments without running; `.compile()` gives a callable that tracks too.

        The state of an optimiser that has none yet is made, as by `optim.init`.
        """
        return Lowered(self, self._stage("lower", args, kwargs))

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Trace for these arguments: `jax.stages.Traced` of the flat function, with its jaxpr."""
        return self._stage("trace", args, kwargs)

    def _stage(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            binding = self._bind(args, kwargs)
            stage = getattr(binding.call, method)
            return stage(binding.objects, *binding.inputs(kwargs), *args)
        except _ReadsMoreError as more:
            self._depend_on_more(more.reads, args, kwargs)
        except StateMissingError as error:
            self._make_state(error.missing, kwargs)
        return self._stage(method, args, kwargs)

    def clear_cache(self) -> None:
        """Forget every binding and compiled program."""
        self._bindings.clear()
        self._last = None
        self._programs.clear()

    def inventory(self, kwargs: dict[str, Any]) -> Inventory:
        """What is tracked in these keyword arguments."""
        return Inventory(kwargs, self._static_names)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Binding | _NestedBinding:
        if local.stack or trace_state.value is not NO_TRACE:
            inventory = self.inventory(kwargs)
            program = self._program(inventory, args, kwargs, may_donate=False)
            return _NestedBinding(inventory, program, _Objects(kwargs, inventory))
        are_nodes = all(map(has_identity, kwargs.values()))
        if are_nodes:
            key: Any = (len(args), *kwargs, *map(id, kwargs.values()))
        else:
            key = self._identity(args, kwargs)
        binding = self._bindings.get(key)
        if binding is None or not binding.is_current():
            binding = self._bindings[key] = self._make_binding(key, args, kwargs)
        if are_nodes:  # whose identities tell them apart as long as they live
            self._last = binding
        return binding

    def _identity(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A key for mixed keyword arguments: nodes by identity, arrays by place, the rest by value."""
        leaves, treedef = flatten(kwargs, has_identity)
        marks = [
            id(leaf)
            if has_identity(leaf)
            else None
            if self._is_plain(path, leaf)
            else Snapshot(leaf)
            for path, leaf in leaves
        ]
        return len(args), treedef, tuple(marks)

    def _is_plain(self, path: str, leaf: Any) -> bool:
        return is_arraylike(leaf) and keyword_of(path) not in self._static_names

    def _make_binding(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Binding:
        inventory = self.inventory(kwargs)
        # Generators make their first state when they are read, and calls read the storage only.
        inventory.read(kwargs)
        forget = functools.partial(_forget, weakref.ref(self), key)
        nodes = filter(has_identity, jax.tree.leaves(kwargs, is_leaf=has_identity))
        roots = [weakref.ref(node, forget) for node in nodes]
        program = self._program(inventory, args, kwargs, may_donate=True)
        return _Binding(inventory, program, len(args), kwargs, roots)

    def _program(
        self,
        inventory: Inventory,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        may_donate: bool,
    ) -> Program:
        donates = bool(self.options["donate"]) and may_donate
        programs = self._programs.setdefault((inventory.key, len(args), donates), [])
        statics = inventory.static_values()
        program = next((program for program in programs if program.fits(statics)), None)
        if program is None:
            if donates:
                plain = self._program(inventory, args, kwargs, may_donate=False)
                slots = self._donated_slots(plain, inventory, args, kwargs)
                program = plain.donating(slots, inventory, len(args)) if slots else plain
            else:
                program = Program(self, inventory, len(args))
            programs.append(program)
        return program

    def _depend_on_more(
        self, reads: frozenset[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Put a program that depends on more static parameters before the one whose trace was given up."""
        inventory = self.inventory(kwargs)
        key = (inventory.key, len(args))
        self._programs[(*key, False)].insert(0, Program(self, inventory, len(args), reads))
        self._programs.pop((*key, True), None)
        self._bindings.clear()
        self._last = None

    def _make_state(self, missing: MissingState, kwargs: dict[str, Any]) -> None:
        """Make the state whose absence has ended a trace."""
        inventory = self.inventory(kwargs)
        param = inventory.params[missing.slot]
        sources = {name: inventory.params[slot] for name, slot in missing.sources.items()}
        make_outside(param, sources, missing.make)  # outside of a `jit` around this one, too
        state = missing.make({name: source.value for name, source in sources.items()})
        sharding = resolve_mask(self.options["kwargs_shardings"], inventory, None)[missing.slot]
        param.set(state if sharding is None else jax.device_put(state, sharding))

    def _donated_slots(
        self, program: Program, inventory: Inventory, args: Any, kwargs: Any
    ) -> list[int]:
        """Slots the function writes, among those the user lets go: found by an abstract run."""
        donate = self.options["donate"]
        names = inventory.names if donate is True else _as_tuple(donate)
        unknown = sorted(set(names) - set(inventory.names))
        if unknown:
            raise InputError(
                f"donate names {', '.join(map(repr, unknown))}, but the call has the keyword arguments "
                f"{', '.join(map(repr, inventory.names)) or 'none'}.",
                code="bad_argument",
            )
        objects = _Objects(kwargs, inventory)
        values = program.begin(inventory.read(kwargs))
        _, _, notes = program.call.eval_shape(objects, values, *args)
        return [slot for slot in notes.slots if keyword_of(inventory.paths[slot]) in names]


def _forget(owner: weakref.ref[Jit], key: Any, _: Any) -> None:
    jitted = owner()
    if jitted is not None:
        jitted._bindings.pop(key, None)
        jitted._last = None


def _static_arguments(
    fun: Callable[..., Any], nums: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The positions and the names of static arguments, which may be passed either way."""
    if not (nums or names):
        return (), ()
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return nums, names
    positional = [p for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    places = {p.name: i for i, p in enumerate(positional) if p.kind is p.POSITIONAL_OR_KEYWORD}
    chosen = {num + len(positional) if num < 0 else num for num in nums}
    named = [name for name, place in places.items() if place in chosen]
    return (*nums, *(places[name] for name in names if name in places)), (*names, *named)


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    donate: bool | str | Sequence[str] = False,
    empty: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    kwargs_shardings: Any = None,
    keep_unused: bool = False,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a function; changes to parameters in keyword arguments are there after the call.

    Args:
        fun: the function. Without it, a decorator is returned.
        donate: let the program reuse the buffers of parameters it writes: `True`, or the keywords whose
            parameters may be donated. Arrays taken out of them before a call are dead after it, and so are
            the parameters when the compiled program itself fails (a host callback that raises).
        empty: a mask of parameters that are `None` when the function begins. A value that they hold is no
            input of the program. They hold what the function sets them to after the call, and what they held
            before if it fails.
        static_argnums: as in `jax.jit`; positions count the positional arguments.
        static_argnames: as in `jax.jit`. What is not an array or number is static without being named.
        donate_argnums: as in `jax.jit`, for positional arguments.
        in_shardings: as in `jax.jit`, for positional arguments.
        out_shardings: as in `jax.jit`, for the result.
        kwargs_shardings: a mask whose values are shardings: parameters are taken and kept so.
        keep_unused: as in `jax.jit`.
        inline: as in `jax.jit`.
        compiler_options: as in `jax.jit`.

    Returns:
        A function that also has `lower`, `trace` and `clear_cache`.

    Example:
        >>> import jax.numpy as jnp
        >>> from chainrule.stateful import Param, jit
        >>> @jit(donate=True)
        ... def decay(rate, *, weight):
        ...     weight *= rate
        ...     return jnp.sum(weight)
        >>> w = Param(jnp.ones(4))
        >>> float(decay(0.5, weight=w)), float(w[0])
        (2.0, 0.5)
    """
    return decorator(
        Jit,
        fun,
        donate=donate,
        empty=empty,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        kwargs_shardings=kwargs_shardings,
        keep_unused=keep_unused,
        inline=inline,
        compiler_options=compiler_options,
    )
