"""Roe's flux."""

from chainrule.elimination import examples as _native

__all__ = ["RoeFlux_1d", "RoeFlux_3d"]

RoeFlux_1d = _native.roe_flux_1d
RoeFlux_3d = _native.roe_flux_3d
