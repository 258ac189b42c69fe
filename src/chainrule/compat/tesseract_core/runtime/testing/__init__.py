"""Gradient checks and regression tests under the ancestor's names."""

from chainrule.compat.tesseract_core.runtime.testing import finite_differences, regression

__all__ = ["finite_differences", "regression"]
