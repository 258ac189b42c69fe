"""Files, runs and derivative helpers for component authors, under the names existing components use.

The derivative helpers are those of `chainrule.runtime.derivatives`, which has more of them.

`SKIP_REQUIRED_FILE_CHECK` says whether the component that is being loaded or run was told not to look for the
files it requires.
"""

from typing import Any

from chainrule.runtime._files import (
    BinrefArray,
    BinrefWriter,
    InputPath,
    LazySequence,
    OutputPath,
    require_file,
)
from chainrule.runtime._references import ComponentReference
from chainrule.runtime._references import ComponentReference as TesseractReference
from chainrule.runtime._residuals import set_jax_vjp_cache_size
from chainrule.runtime._runs import get_config, log_artifact, log_metric, log_parameter
from chainrule.runtime.derivatives import (
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    vjp_from_jacobian,
)

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
    "set_jax_vjp_cache_size",
    "vjp_from_jacobian",
]


def __getattr__(name: str) -> Any:
    if name == "SKIP_REQUIRED_FILE_CHECK":
        return not get_config().require_files
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
