"""Rotations of many vectors at once; quaternions are wxyz, of unit length."""

import torch
from torch import Tensor

_TINY = 1e-30
"""Divides a sine of nothing: the quotient, finite, is multiplied by nothing."""


def length(vector: Tensor) -> Tensor:
    """Of vectors (*B, D), (*B,)."""
    return vector.square().sum(-1).sqrt()


def rotate(quat_wxyz: Tensor, vector: Tensor) -> Tensor:
    """Vectors (*B, 3) turned by quaternions (*B, 4)."""
    w, axis = quat_wxyz[..., :1], quat_wxyz[..., 1:]
    cross = 2.0 * torch.cross(axis, vector, dim=-1)
    return vector + w * cross + torch.cross(axis, cross, dim=-1)


def rotate_inverse(quat_wxyz: Tensor, vector: Tensor) -> Tensor:
    """Vectors (*B, 3) turned by the inverse of quaternions (*B, 4): world axes to body axes."""
    w, axis = quat_wxyz[..., :1], quat_wxyz[..., 1:]
    cross = 2.0 * torch.cross(axis, vector, dim=-1)
    return vector - w * cross + torch.cross(axis, cross, dim=-1)


def up_in(quat_wxyz: Tensor) -> Tensor:
    """The world's z axis in the axes of bodies that quaternions (*B, 4) turn, (*B, 3)."""
    w, x, y, z = (2**0.5 * quat_wxyz).unbind(-1)
    return torch.stack([x * z - w * y, y * z + w * x, 1.0 - x * x - y * y], -1)


def multiply(a_wxyz: Tensor, b_wxyz: Tensor) -> Tensor:
    """The rotation b followed by a, (*B, 4)."""
    aw, av = a_wxyz[..., :1], a_wxyz[..., 1:]
    bw, bv = b_wxyz[..., :1], b_wxyz[..., 1:]
    w = aw * bw - (av * bv).sum(-1, keepdim=True)
    return torch.cat([w, aw * bv + bw * av + torch.cross(av, bv, dim=-1)], -1)


def conjugate(quat_wxyz: Tensor) -> Tensor:
    """The inverse rotation, (*B, 4)."""
    return torch.cat([quat_wxyz[..., :1], -quat_wxyz[..., 1:]], -1)


def from_vector(vector: Tensor) -> Tensor:
    """Quaternion (*B, 4) of rotation vectors (*B, 3) [rad]: axis times angle."""
    angle = length(vector)[..., None]
    ratio = torch.sin(0.5 * angle) / angle.clamp(min=_TINY)
    return torch.cat([torch.cos(0.5 * angle), ratio * vector], -1)


def to_vector(quat_wxyz: Tensor) -> Tensor:
    """Rotation vector (*B, 3) [rad], of the shorter way round: at most pi long."""
    w, axis = quat_wxyz[..., :1], quat_wxyz[..., 1:]
    sine = length(axis)[..., None]
    angle = 2.0 * torch.atan2(sine, w.abs())
    return axis * torch.copysign(angle / sine.clamp(min=_TINY), w)


def from_euler(roll_pitch_yaw: Tensor) -> Tensor:
    """Quaternion (*B, 4) of angles (*B, 3) [rad]: roll about x, then pitch about the fixed y,
    then yaw about the fixed z."""
    cosine, sine = torch.cos(0.5 * roll_pitch_yaw), torch.sin(0.5 * roll_pitch_yaw)
    (cr, cp, cy), (sr, sp, sy) = cosine.unbind(-1), sine.unbind(-1)
    cc, ss, sc, cs = cr * cp, sr * sp, sr * cp, cr * sp
    return torch.stack(
        [cc * cy + ss * sy, sc * cy - cs * sy, cs * cy + sc * sy, cc * sy - ss * cy], -1
    )


def to_euler(quat_wxyz: Tensor) -> Tensor:
    """Angles (*B, 3) [rad] that from_euler takes: roll and yaw up to pi, pitch up to pi / 2."""
    w, x, y, z = quat_wxyz.unbind(-1)
    roll = torch.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    pitch = torch.asin((2.0 * (w * y - x * z)).clamp(-1.0, 1.0))
    return torch.stack([roll, pitch, yaw_of(quat_wxyz)], -1)


def yaw_of(quat_wxyz: Tensor) -> Tensor:
    """Heading (*B,) [rad]: the angle about z of the x axis' shadow on the ground."""
    w, x, y, z = quat_wxyz.unbind(-1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def about_z(yaw: Tensor) -> Tensor:
    """Quaternion (*B, 4) of a turn about z, (*B,) [rad]."""
    zero = torch.zeros_like(yaw)
    return torch.stack([torch.cos(0.5 * yaw), zero, zero, torch.sin(0.5 * yaw)], -1)


def two_columns(quat_wxyz: Tensor) -> Tensor:
    """The first two columns of the rotation matrix, (*B, 6): continuous, as networks like it.

    Source: Zhou et al. 2019, arXiv:1812.07035.
    """
    w, x, y, z = (2**0.5 * quat_wxyz).unbind(-1)
    xy, wz, one_less_zz = x * y, w * z, 1.0 - z * z
    return torch.stack(
        [one_less_zz - y * y, xy + wz, x * z - w * y, xy - wz, one_less_zz - x * x, y * z + w * x],
        -1,
    )
