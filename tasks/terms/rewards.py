"""What is rewarded, each (N,). Errors are squared and summed over axes unless said otherwise.

A kernel exp(-error^2 / std^2) is 1 without an error and flat far from it; a penalty, with a
negative weight, is neither bounded nor ever flat. Tracking terms are kernels; what merely should be
small is penalised.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robo_rl.tasks.terms.term import Reward
from robo_rl.tasks.terms.view import View


def _kernel(squared_error: Tensor, std: float) -> Tensor:
    return torch.exp(squared_error * (-1.0 / std**2))


@dataclass(frozen=True, kw_only=True)
class _Tracking(Reward):
    unit: ClassVar[str] = "1"

    std: float
    """The error at which the reward has fallen to 1/e, in the quantity's unit."""

    def __post_init__(self) -> None:
        if self.std <= 0.0:
            raise ValueError(f"std is {self.std}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class TrackBaseLinVel(_Tracking):
    """Kernel of the error of the horizontal velocity [m/s]."""

    def __call__(self, view: View) -> Tensor:
        return _kernel(view.base_vel_error.square(), self.std)


@dataclass(frozen=True, kw_only=True)
class TrackYawRate(_Tracking):
    """Kernel of the error of the turning speed [rad/s]."""

    def __call__(self, view: View) -> Tensor:
        return _kernel((view.command["base_twist"][:, 2] - view.yaw_rate).square(), self.std)


@dataclass(frozen=True, kw_only=True)
class Tilt(Reward):
    """Squared sine of the base's tilt [1]."""

    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        return view.gravity_b[:, :2].square().sum(-1)


@dataclass(frozen=True, kw_only=True)
class VerticalVel(Reward):
    """Squared vertical velocity of the base [m^2/s^2]."""

    unit: ClassVar[str] = "m^2/s^2"

    def __call__(self, view: View) -> Tensor:
        return view.state.base_lin_vel_w[:, 2].square()


@dataclass(frozen=True, kw_only=True)
class RollPitchRate(Reward):
    """Squared rolling and pitching speed of the base [rad^2/s^2]."""

    unit: ClassVar[str] = "rad^2/s^2"

    def __call__(self, view: View) -> Tensor:
        return view.state.base_ang_vel_b[:, :2].square().sum(-1)


@dataclass(frozen=True, kw_only=True)
class BaseHeightError(Reward):
    """Squared difference of the base's height and the default one [m^2]."""

    unit: ClassVar[str] = "m^2"

    def __call__(self, view: View) -> Tensor:
        return (view.state.base_pos_w[:, 2] - view.layout.base_height).square()


@dataclass(frozen=True, kw_only=True)
class Alive(Reward):
    """1."""

    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        return torch.ones_like(view.state.base_pos_w[:, 2])


@dataclass(frozen=True, kw_only=True)
class _OfLimb(Reward):
    limb: str = "all"
    """Whose joints: a limb of the robot, or all."""


@dataclass(frozen=True, kw_only=True)
class Torque(_OfLimb):
    """Squared torque, summed over joints [N^2 m^2]."""

    unit: ClassVar[str] = "N^2 m^2"

    def __call__(self, view: View) -> Tensor:
        return view.state.joint_torque[:, view.limb(self.limb)].square().sum(-1)


@dataclass(frozen=True, kw_only=True)
class JointSpeed(_OfLimb):
    """Squared joint velocity, summed over joints [rad^2/s^2]."""

    unit: ClassVar[str] = "rad^2/s^2"

    def __call__(self, view: View) -> Tensor:
        return view.state.joint_vel[:, view.limb(self.limb)].square().sum(-1)


@dataclass(frozen=True, kw_only=True)
class ActionRate(_OfLimb):
    """Squared change of the action in a step, summed over joints [1]."""

    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        limb = view.limb(self.limb)
        return (view.action[:, limb] - view.previous_action[:, limb]).square().sum(-1)


@dataclass(frozen=True, kw_only=True)
class JointLimit(_OfLimb):
    """How far joints are beyond the inner share of their range, summed over joints [rad]."""

    unit: ClassVar[str] = "rad"

    inner: float = 0.95
    """Share of the range, about its middle, in which nothing is penalised, in (0, 1]."""

    def __call__(self, view: View) -> Tensor:
        limb = view.limb(self.limb)
        low, high = view.layout.joint_low[limb], view.layout.joint_high[limb]
        middle, half = 0.5 * (low + high), 0.5 * self.inner * (high - low)
        return ((view.state.joint_pos[:, limb] - middle).abs() - half).clamp(min=0.0).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Posture(_OfLimb):
    """Squared joint angles less the default ones, summed over joints [rad^2]."""

    unit: ClassVar[str] = "rad^2"

    def __call__(self, view: View) -> Tensor:
        limb = view.limb(self.limb)
        error = view.state.joint_pos[:, limb] - view.layout.default_joint_pos[limb]
        return error.square().sum(-1)


@dataclass(frozen=True, kw_only=True)
class Collision(_OfLimb):
    """How many bodies of the limb touch that should touch nothing [1]."""

    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        bodies = view.no_touch(self.limb)
        return (view.state.undesired_contacts[:, bodies] > 0.0).sum(-1, dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class AirTime(Reward):
    """Time in the air beyond a threshold, of feet that land in this step while the base should
    move [s].

    Source: legged_gym (Rudin et al. 2022, arXiv:2109.11978).
    """

    unit: ClassVar[str] = "s"

    threshold_s: float = 0.25
    """A shorter step is penalised, a longer one rewarded [s]."""

    def __call__(self, view: View) -> Tensor:
        moves = view.command["base_twist"].abs().amax(-1) > 0.0
        return ((view.foot_air_time - self.threshold_s) * view.foot_landed).sum(-1) * moves


@dataclass(frozen=True, kw_only=True)
class FootSlip(Reward):
    """Squared horizontal speed of feet that touch the ground, summed over feet [m^2/s^2]."""

    unit: ClassVar[str] = "m^2/s^2"

    def __call__(self, view: View) -> Tensor:
        speed = view.state.foot_vel_w[:, :, :2].square().sum(-1)
        return (speed * view.foot_contact).sum(-1)


@dataclass(frozen=True, kw_only=True)
class StandStill(Reward):
    """Feet in the air while no base velocity is commanded, their number [1]."""

    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        stands = view.command["base_twist"].abs().amax(-1) == 0.0
        return (~view.foot_contact).float().sum(-1) * stands


@dataclass(frozen=True, kw_only=True)
class TrackContact(Reward):
    """Share of feet that touch the ground, or do not, as scheduled [1]."""

    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        return view.contact_agreement


@dataclass(frozen=True, kw_only=True)
class SwingForce(_Tracking):
    """1 less the kernel of the force [N] on feet that should swing, mean over feet; a penalty."""

    def __call__(self, view: View) -> Tensor:
        swing = 1.0 - view.command["foot_stance"]
        return (swing * (1.0 - _kernel(view.foot_force.square(), self.std))).mean(-1)


@dataclass(frozen=True, kw_only=True)
class StanceSpeed(_Tracking):
    """1 less the kernel of the speed [m/s] of feet that should stand, mean over feet; a penalty.

    Source, with SwingForce: Margolis and Agrawal 2022, arXiv:2212.03238.
    """

    def __call__(self, view: View) -> Tensor:
        speed = view.state.foot_vel_w.square().sum(-1)
        return (view.command["foot_stance"] * (1.0 - _kernel(speed, self.std))).mean(-1)


@dataclass(frozen=True, kw_only=True)
class TrackFootHeight(_Tracking):
    """Kernel of each foot's height less the scheduled one [m], mean over feet."""

    def __call__(self, view: View) -> Tensor:
        error = view.state.foot_pos_w[:, :, 2] - view.command["foot_height"]
        return _kernel(error.square(), self.std).mean(-1)


@dataclass(frozen=True, kw_only=True)
class TrackEePos(_Tracking):
    """Kernel of the end-effector's distance from where it should be [m]."""

    def __call__(self, view: View) -> Tensor:
        return _kernel(view.ee_distance.square(), self.std)


@dataclass(frozen=True, kw_only=True)
class EeDistance(Reward):
    """The end-effector's distance from where it should be [m]."""

    unit: ClassVar[str] = "m"

    def __call__(self, view: View) -> Tensor:
        return view.ee_distance


@dataclass(frozen=True, kw_only=True)
class TrackEeRotation(_Tracking):
    """Kernel of the angle to the orientation it should have [rad]."""

    def __call__(self, view: View) -> Tensor:
        return _kernel(view.ee_angle.square(), self.std)


@dataclass(frozen=True, kw_only=True)
class EeAngle(Reward):
    """The angle to the orientation it should have [rad]."""

    unit: ClassVar[str] = "rad"

    def __call__(self, view: View) -> Tensor:
        return view.ee_angle


@dataclass(frozen=True, kw_only=True)
class TrackEeLinVel(_Tracking):
    """Kernel of the error of the end-effector's velocity [m/s]."""

    def __call__(self, view: View) -> Tensor:
        return _kernel(view.ee_lin_vel_error.square(), self.std)


@dataclass(frozen=True, kw_only=True)
class TrackEeAngVel(_Tracking):
    """Kernel of the error of the end-effector's angular velocity [rad/s]."""

    def __call__(self, view: View) -> Tensor:
        return _kernel(view.ee_ang_vel_error.square(), self.std)
