"""The benchmark functions under their published names."""

from chainrule.elimination import examples as _native

__all__ = [
    "BlackScholes",
    "BlackScholes_Jacobian",
    "Encoder",
    "Helmholtz",
    "HumanHeartDipole",
    "Perceptron",
    "PropaneCombustion",
    "RobotArm_6DOF",
    "RoeFlux_1d",
    "RoeFlux_3d",
    "Simple",
]

BlackScholes = _native.black_scholes
BlackScholes_Jacobian = _native.black_scholes_jacobian
Encoder = _native.encoder
Helmholtz = _native.helmholtz
HumanHeartDipole = _native.human_heart_dipole
Perceptron = _native.perceptron
PropaneCombustion = _native.propane_combustion
RobotArm_6DOF = _native.robot_arm_6dof
RoeFlux_1d = _native.roe_flux_1d
RoeFlux_3d = _native.roe_flux_3d
Simple = _native.simple
