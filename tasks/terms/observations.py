"""What is observed. Sizes: J joints, F feet."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from robo_rl.tasks.terms.rotations import two_columns
from robo_rl.tasks.terms.term import AXIAL, POLAR, Observation, Signs
from robo_rl.tasks.terms.view import View


def exact(terms: Mapping[str, Observation]) -> dict[str, Observation]:
    """The same terms without noise: what a critic sees of what an actor observes."""
    return {name: replace(term, noise=0.0) for name, term in terms.items()}


@dataclass(frozen=True, kw_only=True)
class BaseAngVel(Observation):
    """Gyroscope, (N, 3)."""

    unit: ClassVar[str] = "rad/s"
    frame: ClassVar[str] = "base"
    signs: ClassVar[Signs] = AXIAL

    def __call__(self, view: View) -> Tensor:
        return view.state.base_ang_vel_b


@dataclass(frozen=True, kw_only=True)
class Gravity(Observation):
    """Direction of gravity, a unit vector (N, 3): (0, 0, -1) when the base is level."""

    unit: ClassVar[str] = "1"
    frame: ClassVar[str] = "base"
    signs: ClassVar[Signs] = POLAR

    def __call__(self, view: View) -> Tensor:
        return view.gravity_b


@dataclass(frozen=True, kw_only=True)
class JointPos(Observation):
    """Joint positions less the joints' default ones (not the offset of their targets), (N, J)."""

    unit: ClassVar[str] = "rad"
    signs: ClassVar[Signs] = "joints"

    def __call__(self, view: View) -> Tensor:
        return view.state.joint_pos - view.layout.default_joint_pos


@dataclass(frozen=True, kw_only=True)
class JointVel(Observation):
    """Joint velocities, (N, J)."""

    unit: ClassVar[str] = "rad/s"
    signs: ClassVar[Signs] = "joints"

    def __call__(self, view: View) -> Tensor:
        return view.state.joint_vel


@dataclass(frozen=True, kw_only=True)
class LastAction(Observation):
    """The action before this observation, as the policy gave it, (N, J)."""

    unit: ClassVar[str] = "1"
    signs: ClassVar[Signs] = "joints"

    def __call__(self, view: View) -> Tensor:
        return view.action


@dataclass(frozen=True, kw_only=True)
class BaseTwistCommand(Observation):
    """Commanded base velocity: forward, left [m/s], turning [rad/s], (N, 3)."""

    unit: ClassVar[str] = "m/s, rad/s"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = (1.0, -1.0, -1.0)

    def __call__(self, view: View) -> Tensor:
        return view.command["base_twist"]


@dataclass(frozen=True, kw_only=True)
class EePosError(Observation):
    """Where the end-effector should be less where it is, (N, 3), known from the joint encoders and
    gravity: it takes the base to be at its default height."""

    unit: ClassVar[str] = "m"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = POLAR

    def __call__(self, view: View) -> Tensor:
        return view.command["ee_pos"] - view.ee_pos_measured_t


@dataclass(frozen=True, kw_only=True)
class EeRotationError(Observation):
    """The rotation vector (axis times angle) that turns the end-effector into the orientation it
    should have, (N, 3)."""

    unit: ClassVar[str] = "rad"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = AXIAL

    def __call__(self, view: View) -> Tensor:
        return view.ee_rotation_error_t


@dataclass(frozen=True, kw_only=True)
class EePosCommand(Observation):
    """Where the end-effector should be now, (N, 3)."""

    unit: ClassVar[str] = "m"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = POLAR

    def __call__(self, view: View) -> Tensor:
        return view.command["ee_pos"]


@dataclass(frozen=True, kw_only=True)
class EeRotationCommand(Observation):
    """The orientation the end-effector should have now, (N, 6): the first column of its rotation
    matrix, then the second; the matrix takes its axes into the frame's."""

    unit: ClassVar[str] = "1"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = (1.0, -1.0, 1.0, -1.0, 1.0, -1.0)

    def __call__(self, view: View) -> Tensor:
        return two_columns(view.command["ee_quat_wxyz"])


@dataclass(frozen=True, kw_only=True)
class EeTwistCommand(Observation):
    """The twist the end-effector should have now: linear [m/s], then angular [rad/s], (N, 6)."""

    unit: ClassVar[str] = "m/s, rad/s"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = (1.0, -1.0, 1.0, -1.0, 1.0, -1.0)

    def __call__(self, view: View) -> Tensor:
        return view.command["ee_twist"]


@dataclass(frozen=True, kw_only=True)
class EeGoal(Observation):
    """What is left of the path from here to its end: position [m] and rotation vector [rad],
    (N, 6)."""

    unit: ClassVar[str] = "m, rad"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = (1.0, -1.0, 1.0, -1.0, 1.0, -1.0)

    def __call__(self, view: View) -> Tensor:
        return view.command["ee_left"]


@dataclass(frozen=True, kw_only=True)
class FootHeightCommand(Observation):
    """How high each foot should be above the ground, (N, F)."""

    unit: ClassVar[str] = "m"
    signs: ClassVar[Signs] = "feet"

    def __call__(self, view: View) -> Tensor:
        return view.command["foot_height"]


@dataclass(frozen=True, kw_only=True)
class FootPhase(Observation):
    """Each foot's phase as sines of all feet, then their cosines, (N, 2F); zero while the base is
    told to stand."""

    unit: ClassVar[str] = "1"
    signs: ClassVar[Signs] = "feet"

    def __call__(self, view: View) -> Tensor:
        angle = 2.0 * torch.pi * view.command["foot_phase"]
        moving = view.command["gait_moves"][:, None]
        return torch.cat([torch.sin(angle) * moving, torch.cos(angle) * moving], -1)


@dataclass(frozen=True, kw_only=True)
class BaseLinVel(Observation):
    """The base's velocity, (N, 3)."""

    unit: ClassVar[str] = "m/s"
    frame: ClassVar[str] = "base"
    signs: ClassVar[Signs] = POLAR
    measured: ClassVar[bool] = False

    def __call__(self, view: View) -> Tensor:
        return view.base_lin_vel_b


@dataclass(frozen=True, kw_only=True)
class BaseHeight(Observation):
    """The base's height less the default one, (N, 1)."""

    unit: ClassVar[str] = "m"
    frame: ClassVar[str] = "world"
    signs: ClassVar[Signs] = (1.0,)
    measured: ClassVar[bool] = False

    def __call__(self, view: View) -> Tensor:
        return view.state.base_pos_w[:, 2:] - view.layout.base_height


@dataclass(frozen=True, kw_only=True)
class EeTwist(Observation):
    """The end-effector's twist in the moving task frame, (N, 6)."""

    unit: ClassVar[str] = "m/s, rad/s"
    frame: ClassVar[str] = "task"
    signs: ClassVar[Signs] = (1.0, -1.0, 1.0, -1.0, 1.0, -1.0)
    measured: ClassVar[bool] = False

    def __call__(self, view: View) -> Tensor:
        return torch.cat([view.ee_lin_vel_t, view.ee_ang_vel_t], -1)


@dataclass(frozen=True, kw_only=True)
class FootForce(Observation):
    """Vertical force on each foot, (N, F)."""

    unit: ClassVar[str] = "N"
    signs: ClassVar[Signs] = "feet"
    measured: ClassVar[bool] = False

    def __call__(self, view: View) -> Tensor:
        return view.state.foot_force_w[:, :, 2]


@dataclass(frozen=True, kw_only=True)
class FootHeight(Observation):
    """Height of each foot's centre, (N, F)."""

    unit: ClassVar[str] = "m"
    frame: ClassVar[str] = "world"
    signs: ClassVar[Signs] = "feet"
    measured: ClassVar[bool] = False

    def __call__(self, view: View) -> Tensor:
        return view.state.foot_pos_w[:, :, 2]


@dataclass(frozen=True, kw_only=True)
class JointTorque(Observation):
    """Torque of each actuator, (N, J)."""

    unit: ClassVar[str] = "Nm"
    signs: ClassVar[Signs] = "joints"
    measured: ClassVar[bool] = False

    def __call__(self, view: View) -> Tensor:
        return view.state.joint_torque
