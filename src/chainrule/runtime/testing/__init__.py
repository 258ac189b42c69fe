"""Check components: gradient checks and regression tests, over any transport.

In reading order:

    _gradients     check_gradients: the tests, and how evaluations are shared among them
    _samples       what derivatives are compared with: differences of `apply`
    _subject       the component under test: which arrays, which paths
    _report        what a gradient check found
    _regression    test files: run, record, compare
"""

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
