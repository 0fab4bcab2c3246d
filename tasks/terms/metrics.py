"""What is measured and logged besides rewards, each (N,), in units."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robo_rl.tasks.terms.term import Term
from robo_rl.tasks.terms.view import View


@dataclass(frozen=True, kw_only=True)
class BaseVelError(Term):
    """Size of the error of the base's horizontal velocity."""

    unit: ClassVar[str] = "m/s"

    def __call__(self, view: View) -> Tensor:
        return view.base_vel_error


@dataclass(frozen=True, kw_only=True)
class YawRateError(Term):
    """Size of the error of the turning speed."""

    unit: ClassVar[str] = "rad/s"

    def __call__(self, view: View) -> Tensor:
        return (view.command["base_twist"][:, 2] - view.yaw_rate).abs()


@dataclass(frozen=True, kw_only=True)
class EePosError(Term):
    """Distance of the end-effector from where it should be."""

    unit: ClassVar[str] = "m"

    def __call__(self, view: View) -> Tensor:
        return view.ee_distance


@dataclass(frozen=True, kw_only=True)
class EeRotationError(Term):
    """Angle to the orientation it should have."""

    unit: ClassVar[str] = "rad"

    def __call__(self, view: View) -> Tensor:
        return view.ee_angle


@dataclass(frozen=True, kw_only=True)
class EeLinVelError(Term):
    """Size of the error of the end-effector's velocity."""

    unit: ClassVar[str] = "m/s"

    def __call__(self, view: View) -> Tensor:
        return view.ee_lin_vel_error


@dataclass(frozen=True, kw_only=True)
class EeAngVelError(Term):
    """Size of the error of the end-effector's angular velocity."""

    unit: ClassVar[str] = "rad/s"

    def __call__(self, view: View) -> Tensor:
        return view.ee_ang_vel_error


@dataclass(frozen=True, kw_only=True)
class ContactAgreement(Term):
    """Share of feet whose contact is as scheduled."""

    unit: ClassVar[str] = "1"

    def __call__(self, view: View) -> Tensor:
        return view.contact_agreement


@dataclass(frozen=True, kw_only=True)
class Power(Term):
    """Mechanical power of all actuators, what they brake not subtracted."""

    unit: ClassVar[str] = "W"

    def __call__(self, view: View) -> Tensor:
        return (view.state.joint_torque * view.state.joint_vel).abs().sum(-1)
