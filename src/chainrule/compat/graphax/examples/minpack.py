"""Problems of MINPACK-2."""

from chainrule.elimination import examples as _native

__all__ = ["HumanHeartDipole", "PropaneCombustion"]

HumanHeartDipole = _native.human_heart_dipole
PropaneCombustion = _native.propane_combustion
