"""What a task must know of a robot beyond its MJCF: which parts are what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Robot:
    """A robot: its MJCF and the names in it.

    The MJCF holds bodies, joints (ranges, armature, `actuatorfrcrange`), a position actuator for
    each policy joint, named as its joint, a keyframe "home" (the default pose, standing on z = 0)
    and the sites and foot geoms named here. It has no ground: the task adds one.
    """

    name: str
    mjcf: str | Path
    """MJCF text, or the path of a file (then meshes are found beside it)."""
    base: str
    """The body with the free joint."""
    joints: tuple[str, ...]
    """Actuated joints in the policy's order."""
    velocity_limits: Mapping[str, float]
    """By joint [rad/s]: what its motor reaches; MJCF has no place for it."""
    feet: tuple[str, ...]
    """Foot geoms, front to rear, left before right."""
    limbs: Mapping[str, tuple[str, ...]]
    """Joints by limb, e.g. legs and arm; together all joints."""
    ee: str | None = None
    """The end-effector's site."""
    mirror: Mapping[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """By joint: its left-right mirror image and the sign of its angle there; empty without one."""
    action_scale: Mapping[str, float] = field(default_factory=dict[str, float])
    """By joint: radians of target per unit of action."""
    undesired_contacts: tuple[str, ...] = ()
    """Bodies that should touch nothing (trunk, thighs, arm links)."""
