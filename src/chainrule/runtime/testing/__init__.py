"""Trust in a component: gradient checks and regression tests, over any transport."""

from chainrule.runtime.testing._gradients import check_gradients
from chainrule.runtime.testing._regression import (
    RegressionResult,
    RegressionSpec,
    find_tests,
    record,
    run_test,
)
from chainrule.runtime.testing._report import Check, GradientReport, Mismatch

__all__ = [
    "Check",
    "GradientReport",
    "Mismatch",
    "RegressionResult",
    "RegressionSpec",
    "check_gradients",
    "find_tests",
    "record",
    "run_test",
]
