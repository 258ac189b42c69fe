"""Files, runs and derivative helpers for component authors, under the names existing components use."""

from chainrule.runtime._codec import BinrefArray, BinrefWriter
from chainrule.runtime._derivatives import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    vjp_from_jacobian,
)
from chainrule.runtime._files import InputPath, OutputPath, require_file
from chainrule.runtime._lazy_sequence import LazySequence
from chainrule.runtime._metrics import log_artifact, log_metric, log_parameter
from chainrule.runtime._references import ComponentReference
from chainrule.runtime._references import ComponentReference as TesseractReference

__all__ = [
    "BinrefArray",
    "BinrefWriter",
    "ComponentReference",
    "InputPath",
    "LazySequence",
    "OutputPath",
    "TesseractReference",
    "finite_difference_jacobian",
    "finite_difference_jvp",
    "finite_difference_vjp",
    "jacobian_from_jvp",
    "jacobian_from_vjp",
    "jvp_from_jacobian",
    "log_artifact",
    "log_metric",
    "log_parameter",
    "require_file",
    "vjp_from_jacobian",
]
