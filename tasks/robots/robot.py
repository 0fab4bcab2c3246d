"""What a task must know of a robot beyond its MJCF: which parts are what."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from robo_rl.config import did_you_mean


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
    action_scale: Mapping[str, float]
    """By joint: radians of target per unit of action."""
    undesired_contacts: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    """By limb, bodies that should touch nothing (trunk, thighs, arm links)."""

    @property
    def no_touch(self) -> tuple[str, ...]:
        """All undesired_contacts, limb after limb."""
        return tuple(body for bodies in self.undesired_contacts.values() for body in bodies)

    def __post_init__(self) -> None:
        self._unique("joints", self.joints)
        self._unique("feet", self.feet)
        in_limbs = [joint for limb in self.limbs.values() for joint in limb]
        self._unique("limbs", in_limbs)
        self._by_joint("limbs", in_limbs)
        for limb in self.undesired_contacts:
            if limb not in self.limbs:
                raise ValueError(
                    f"{self.name}: undesired_contacts has a limb {limb!r}; it can have those of "
                    f"limbs: {', '.join(self.limbs)}"
                )
        self._by_joint("velocity_limits", self.velocity_limits)
        self._by_joint("action_scale", self.action_scale)
        for what, values in (("velocity", self.velocity_limits), ("action", self.action_scale)):
            for joint, value in values.items():
                if not value > 0.0:
                    raise ValueError(
                        f"{self.name}: {what} of {joint} is {value}; it must be above 0"
                    )
        if self.mirror:
            self._check_mirror()

    def _check_mirror(self) -> None:
        self._by_joint("mirror", self.mirror)
        self._by_joint("mirror", [image for image, _ in self.mirror.values()])
        for joint, (image, sign) in self.mirror.items():
            if self.mirror[image] != (joint, sign) or abs(sign) != 1.0:
                raise ValueError(
                    f"{self.name}: mirror takes {joint} to {image} with sign {sign} and {image} to "
                    f"{self.mirror[image][0]} with sign {self.mirror[image][1]}; twice must lead "
                    f"back, with signs of 1 or -1"
                )
        if len(self.feet) % 2:
            raise ValueError(
                f"{self.name} has {len(self.feet)} feet; with a mirror they are pairs, left first"
            )

    def _unique(self, what: str, names: Sequence[str]) -> None:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.name}: {what} has {', '.join(twice)} twice; once is enough")

    def _by_joint(self, what: str, names: Collection[str]) -> None:
        """Each policy joint is there, and no other."""
        unknown = sorted(set(names) - set(self.joints))
        missing = [joint for joint in self.joints if joint not in names]
        if unknown:
            raise ValueError(
                f"{self.name}: {what} names {', '.join(unknown)}, which is none of the joints "
                f"{', '.join(self.joints)}{did_you_mean(unknown[0], self.joints)}"
            )
        if missing:
            raise ValueError(f"{self.name}: {what} lacks joint {', '.join(missing)}; give each one")
