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
    _sow              `sow`: modes, the primitive, its derivative and batching rules
    _capture          from a function with sows to its sown values: trace, run, collect, compile
    _intermediates    `save_intermediates` and `intermediate_stats`
    _substitute       `plant` and `grad_wrt`
    _nonfinite        `locate_nonfinite`
    internal          what other packages of this project use
"""

from chainrule.harvest._capture import DuplicateNameError
from chainrule.harvest._intermediates import Stats, intermediate_stats, save_intermediates
from chainrule.harvest._nonfinite import NonFinite, locate_nonfinite
from chainrule.harvest._sow import sow
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
