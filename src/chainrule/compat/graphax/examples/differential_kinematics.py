"""A robot arm."""

from chainrule.elimination import examples as _native

__all__ = ["RobotArm_6DOF"]

RobotArm_6DOF = _native.robot_arm_6dof
