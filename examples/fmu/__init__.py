"""Small FMUs, written in C: for the page about FMUs, its tests and its benchmark."""

from examples.fmu.build import build_fmu

__all__ = ["build_fmu"]
