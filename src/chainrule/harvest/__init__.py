"""Look inside JAX programs while they run: values, tangents, cotangents.

Vocabulary
    sow            name a value inside a function; the identity, and nothing at all once compiled.
    tag            a group of names.
    capture        run a function and get its sown values beside its result.
    mode           what was sown: `primal` (the value), `tangent`, `cotangent`, `tangent_of_cotangent`, …
    plant          run a function with other values in the place of sown ones.

Invariant: a capture never changes the result of a function, and never loses a sow: one that sits where
it cannot be captured is an error that says where.
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
