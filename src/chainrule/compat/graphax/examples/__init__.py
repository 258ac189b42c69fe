"""The benchmark functions under their published names."""

from chainrule.compat.graphax.examples.deep_learning import Encoder, Perceptron
from chainrule.compat.graphax.examples.differential_kinematics import RobotArm_6DOF
from chainrule.compat.graphax.examples.easy import Helmholtz, Hole, Lighthouse, Simple
from chainrule.compat.graphax.examples.economics import BlackScholes, BlackScholes_Jacobian
from chainrule.compat.graphax.examples.minpack import HumanHeartDipole, PropaneCombustion
from chainrule.compat.graphax.examples.roe import RoeFlux_1d, RoeFlux_3d

__all__ = [
    "BlackScholes",
    "BlackScholes_Jacobian",
    "Encoder",
    "Helmholtz",
    "Hole",
    "HumanHeartDipole",
    "Lighthouse",
    "Perceptron",
    "PropaneCombustion",
    "RobotArm_6DOF",
    "RoeFlux_1d",
    "RoeFlux_3d",
    "Simple",
]
