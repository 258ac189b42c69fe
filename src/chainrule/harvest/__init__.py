"""Look inside JAX programs while they run: values, tangents, cotangents.

Vocabulary
    sow            name a value inside a function; the identity, and nothing at all once compiled.
    tag            a group of names.
    capture        run a function and get its sown values beside its result.
    mode           what was sown: `primal` (the value), `tangent`, `cotangent`, `tangent_of_cotangent`, …
    plant          run a function with other values in the place of sown ones.

Invariant: a capture never changes the result of a function, and never loses a sow: one that sits where
it cannot be captured is an error that says where.

Modules, in reading order
    _mode          what a sown value is: the value, or which derivative of it
    _slots         leaves of a pytree: arrays, and everything else
    _sow           `sow`: the primitive, its derivative and batching rules, and what a capture asks of it
    _capture       tracing a function with its sows alive; running it so that the sown values come out
    _collect       from these values to the dictionary by name and mode; duplicate names
    _static        leaves that are no arrays, on their way through `jit`
    _staged        functions that are traced, rewritten and compiled once per signature
    _save          `save_intermediates`
    _stats         `intermediate_stats`
    _substitute    `plant` and `grad_wrt`
    _nonfinite     `locate_nonfinite`
    internal       what other packages of this project use
"""

from chainrule.harvest._collect import DuplicateNameError
from chainrule.harvest._nonfinite import NonFinite, locate_nonfinite
from chainrule.harvest._save import save_intermediates
from chainrule.harvest._sow import sow
from chainrule.harvest._stats import Stats, intermediate_stats
from chainrule.harvest._substitute import grad_wrt, plant

__all__ = [
    "DuplicateNameError",
    "NonFinite",
    "Stats",
    "grad_wrt",
    "intermediate_stats",
    "locate_nonfinite",
    "plant",
    "save_intermediates",
    "sow",
]
