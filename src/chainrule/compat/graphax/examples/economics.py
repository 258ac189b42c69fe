"""Prices of options."""

from chainrule.elimination import examples as _native

__all__ = ["BlackScholes", "BlackScholes_Jacobian"]

BlackScholes = _native.black_scholes
BlackScholes_Jacobian = _native.black_scholes_jacobian
