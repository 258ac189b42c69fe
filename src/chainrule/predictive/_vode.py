"""`Vode`: a value node, the place where a value meets its prediction; and the energies of such a place.

A node has *slots*. `h`, the value, is a parameter of its own and stays; `u`, the prediction, and slots of the
user live in the cache and are cleared with it. Slots are written and read through the node's ruleset.

An energy says how much the value disagrees with the prediction, one term per element. It is any function
`energy(vode, rkg) -> array`, which reads the node's slots with `vode.require`; what it returns is summed over
all elements by `Vode.energy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from chainrule._errors import DefinitionError, InputError
from chainrule.predictive._energy_module import EnergyModule
from chainrule.predictive._kinds import STATUS, VodeCache, VodeParam
from chainrule.predictive._rules import OutputRule, Ruleset, Transform
from chainrule.stateful import RKG, Param, RandomKeyGenerator


def _value_and_prediction(vode: Vode, rkg: RandomKeyGenerator) -> tuple[jax.Array, jax.Array]:
    """Both slots, element for element: broadcasting would count elements several times."""
    value, prediction = (jnp.asarray(vode.require(slot, rkg=rkg)) for slot in ("h", "u"))
    if value.shape != prediction.shape:
        raise InputError(
            f"A node's value `h` has the shape {value.shape} and its prediction `u` the shape "
            f"{prediction.shape}, for one sample; an energy compares them element by element. Give the "
            "labels the shape of what the network returns.",
            code="slot_shapes",
        )
    return value, prediction


def se_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Squared error `(h - u)² / 2`: the value is Gaussian around its prediction."""
    value, prediction = _value_and_prediction(vode, rkg)
    error = value - prediction
    return 0.5 * error * error


def ce_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Cross-entropy `-h log softmax(u)`: the value is a distribution, the prediction its logits.

    Classes lie along the last axis.
    """
    value, prediction = _value_and_prediction(vode, rkg)
    return -value * jax.nn.log_softmax(prediction)


def zero_energy(vode: Vode, rkg: RandomKeyGenerator = RKG) -> jax.Array:
    """Nothing: the value is not tied to its prediction."""
    return jnp.zeros_like(vode.require("h", rkg=rkg))


_FORWARD_INITIALISATION = {STATUS.INIT: ("h, u <- u",)}


class Vode(EnergyModule):
    """A value node: `x = vode(activation(layer(x)))`.

    Given a prediction `u`, it stores it and answers with its value `h`. In the status `init` the prediction
    becomes the value. Written for one sample, as layers are; map over a batch with `vmap`.

    Args:
        energy_fn: `energy(vode, rkg) -> array`, one term per element; `None` for a node without energy.
        ruleset: pattern of statuses → rules, see `Ruleset`. An entry `"init"` replaces the default one.
        tforms: name → transform, for the rules.
        param_type: kind of the value; its attribute `Cache` is the kind of the cache.
        **metadata: attributes of the value, for example `frozen=True` to clamp it.

    Example:
        >>> import jax.numpy as jnp
        >>> node = Vode()
        >>> node.set("h", jnp.array([1.0, 2.0]))(jnp.array([0.0, 0.0])).tolist()
        [1.0, 2.0]
        >>> float(node.energy())
        2.5
    """

    def __init__(
        self,
        energy_fn: Callable[..., Any] | None = se_energy,
        ruleset: Mapping[str, Iterable[str]] | None = None,
        tforms: Mapping[str, Transform] | None = None,
        param_type: type[Any] = VodeParam,
        **metadata: Any,
    ) -> None:
        if energy_fn is not None and not callable(energy_fn):
            raise DefinitionError(
                f"`energy_fn` is a function `(vode, rkg) -> array`, or None; found {energy_fn!r}.",
                code="bad_energy",
            )
        self.energy_fn = energy_fn
        self.ruleset = Ruleset({**_FORWARD_INITIALISATION, **(ruleset or {})}, tforms)
        self.h = param_type(None, **metadata)
        cache = getattr(param_type, "Cache", VodeCache)
        self.cache = cache()
        self.answers = cache()

    def __call__(
        self,
        u: Any = None,
        *,
        rkg: RandomKeyGenerator = RKG,
        output: str | None = "h",
        **slots: Any,
    ) -> Any:
        """Set the prediction and other slots, and return the value of a slot.

        Args:
            u: the prediction; `None` leaves it as it is.
            rkg: for transforms that draw.
            output: the slot to return; `None` returns the node.
            **slots: further slots to set.
        """
        if u is not None:
            self.set("u", u, rkg=rkg)
        for key, value in slots.items():
            self.set(key, value, rkg=rkg)
        return self if output is None else self.get(output, rkg=rkg)

    def set(self, key: str, value: Any, *, rkg: RandomKeyGenerator = RKG) -> Vode:
        """Set a slot as the rules of the current status say; without a rule, store it under its name.

        Returns:
            The node.
        """
        rules = self.ruleset.inputs(self.status, key)
        if not rules:
            self._store(key, value)
        for rule in rules:
            result = self.ruleset.apply(rule, self, value, rkg)
            for target in rule.targets:
                self._store(target, result)
        return self

    def get(self, key: str, default: Any = None, *, rkg: RandomKeyGenerator = RKG) -> Any:
        """A slot as the rules of the current status answer for it; `default` where there is nothing.

        What transforms gave is kept until a slot of the node changes, so a random one gives the same
        answer until then.
        """
        value = self._read(key, rkg, ())
        return default if value is None else value

    def require(self, key: str, *, rkg: RandomKeyGenerator = RKG) -> Any:
        """A slot that has to be there.

        Raises:
            InputError: it is empty.
        """
        value = self.get(key, rkg=rkg)
        if value is None:
            filled = [name for name, slot in self._slots().items() if slot is not None]
            raise InputError(
                f"Slot {key!r} of a node is empty in status {self.status!r}; filled are: "
                f"{', '.join(sorted(filled)) or 'none'}. Run the network first: the prediction `u` is "
                "cleared with the cache after every step, and `h` gets its first value in status 'init'.",
                code="empty_slot",
                path=key,
            )
        return value

    def terms(self, *, rkg: RandomKeyGenerator = RKG) -> Any:
        """The energy, one term per element."""
        if self.energy_fn is None:
            return jnp.zeros_like(self.require("h", rkg=rkg))
        return self.energy_fn(self, rkg)

    def energy(self, *, rkg: RandomKeyGenerator = RKG) -> Any:
        """The energy, summed over all elements the node holds: of one sample, inside `vmap`."""
        return 0.0 if self.energy_fn is None else jnp.sum(self.terms(rkg=rkg))

    def _param(self, key: str) -> Param | None:
        param = self.__dict__.get(key)
        return param if isinstance(param, Param) else None

    def _store(self, key: str, value: Any) -> None:
        param = self._param(key)
        if param is None:
            self.cache[key] = value
        else:
            param.set(value)

    def _stored(self, key: str) -> Any:
        param = self._param(key)
        return self.cache.get(key) if param is None else param.get()

    def _slots(self) -> dict[str, Any]:
        params = {k: v.get() for k, v in self.__dict__.items() if isinstance(v, Param)}
        return {**dict(self.cache.items()), **params}

    def _read(self, key: str, rkg: RandomKeyGenerator, asked: tuple[str, ...]) -> Any:
        """A slot by its rule. A rule that comes back to a slot already asked for gets what is stored."""
        rule = None if key in asked else self.ruleset.output(self.status, key)
        if rule is None:
            return self._stored(key)
        source = self._read(rule.target, rkg, (*asked, key))
        return self._answer(rule, source, rkg) if rule.transforms else source

    def _answer(self, rule: OutputRule, source: Any, rkg: RandomKeyGenerator) -> Any:
        name = f"{self.status} | {rule.key} -> {':'.join((rule.target, *rule.transforms))}"
        slots = self._slots()
        # Kept with the slots that it was made from. They are compared by identity: inside a transformation
        # they are other objects (tracers), so that an answer of another trace is never taken.
        given, answer = self.answers.get(name, (None, None))
        if given is None or not _are_same(given, slots):
            answer = self.ruleset.apply(rule, self, source, rkg)
            self.answers[name] = (slots, answer)
        return answer


def _are_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether all slots hold the very same objects: then nothing was written in between.

    Values that crossed a transformation are other objects; an answer is then computed again, which costs
    time at most, and is what derivatives need.
    """
    leaves_a, leaves_b = jax.tree.leaves(a), jax.tree.leaves(b)
    return a.keys() == b.keys() and len(leaves_a) == len(leaves_b) and all(
        x is y for x, y in zip(leaves_a, leaves_b, strict=True)
    )  # fmt: skip
