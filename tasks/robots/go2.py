"""Unitree Go2 of primitive shapes: 12 joints, 15.2 kg.

Source of every number without one of its own: `unitree_go2/go2.xml` of MuJoCo Menagerie (commit
2ffe3e3), its inertias turned from principal axes into the link's frame. Differs: the trunk's
products of inertia across the sagittal plane (under 1 % of its smallest moment) are zero, so that
the robot is its own mirror image.
"""

from collections.abc import Sequence
from math import cos, sin

from .robot import Robot

LEGS = ("FL", "FR", "RL", "RR")
LEG_JOINTS = tuple(f"{leg}_{link}_joint" for leg in LEGS for link in ("hip", "thigh", "calf"))
LEG_HOME = (0.0, 0.9, -1.8)
"""Default angles of a leg [rad]."""
LEG_VELOCITY_LIMITS = {joint: 20.07 if "calf" in joint else 30.1 for joint in LEG_JOINTS}
"""[rad/s], from `go2_description.urdf` of unitree_ros."""
LEG_MIRROR = {
    joint: (joint[0] + {"L": "R", "R": "L"}[joint[1]] + joint[2:], -1.0 if "hip" in joint else 1.0)
    for joint in LEG_JOINTS
}
LEG_ACTION_SCALE = dict.fromkeys(LEG_JOINTS, 0.25)
"""[rad], as Isaac Lab, legged_gym, UMI-on-Legs and RoboDuet have it."""
LEG_UNDESIRED_CONTACTS = ("base", *(f"{leg}_{link}" for leg in LEGS for link in ("hip", "thigh")))

THIGH = CALF = 0.213
"""From joint to joint and from knee to foot [m]."""
FOOT = (-0.002, 0.022)
"""The foot sphere's distance before the calf's axis, and its radius [m]."""


def go2_mjcf(
    *,
    name: str,
    kp: float,
    kd: float,
    on_trunk: str = "",
    actuators: str = "",
    joints_home: Sequence[float] = (),
) -> str:
    """MJCF of a Go2, bare or with something mounted.

    Args:
        kp, kd: of the legs' position actuators [Nm/rad, Nm s/rad].
        on_trunk: bodies and geoms in the trunk's frame, after the legs.
        actuators: of the joints in on_trunk.
        joints_home: default angles of those joints [rad].
    """
    home = " ".join(f"{angle:g}" for angle in (*LEG_HOME * 4, *joints_home))
    height = home_height()
    legs = "".join(_leg(leg) for leg in LEGS)
    leg_actuators = "".join(position_actuator(joint, kp, kd) for joint in LEG_JOINTS)
    return f"""\
<mujoco model="{name}">
  <compiler angle="radian" fusestatic="true"/>
  <option timestep="0.005" integrator="implicitfast" iterations="4" ls_iterations="8"/>
  <default>
    <default class="go2">
      <geom condim="3" contype="0" conaffinity="1" group="3"/>
      <joint axis="0 1 0" armature="0.01" damping="0.1" frictionloss="0.2"/>
      <default class="visual">
        <geom contype="0" conaffinity="0" group="2" mass="0"/>
      </default>
      <default class="hip">
        <joint axis="1 0 0" range="-1.0472 1.0472" actuatorfrcrange="-23.7 23.7"/>
      </default>
      <default class="thigh_front">
        <joint range="-1.5708 3.4907" actuatorfrcrange="-23.7 23.7"/>
      </default>
      <default class="thigh_rear">
        <joint range="-0.5236 4.5379" actuatorfrcrange="-23.7 23.7"/>
      </default>
      <default class="calf">
        <joint range="-2.7227 -0.83776" actuatorfrcrange="-45.43 45.43"/>
      </default>
      <default class="foot">
        <geom type="sphere" size="{FOOT[1]}" pos="{FOOT[0]} 0 {-CALF}" priority="1"
          friction="0.8 0.02 0.01" group="2" material="rubber"/>
        <site pos="{FOOT[0]} 0 {-CALF}" size="0.01" group="4"/>
      </default>
    </default>
  </default>
  <asset>
    <material name="shell" rgba="0.78 0.80 0.83 1" specular="0.4" shininess="0.5"/>
    <material name="dark" rgba="0.13 0.14 0.16 1" specular="0.3" shininess="0.4"/>
    <material name="rubber" rgba="0.05 0.05 0.05 1" specular="0.1"/>
    <material name="accent" rgba="0.95 0.55 0.10 1" specular="0.4"/>
  </asset>
  <worldbody>
    <body name="base" childclass="go2" pos="0 0 {height:.4f}">
      <freejoint name="root"/>
      <inertial pos="0.021112 0 -0.005366" mass="6.921"
        fullinertia="0.02448 0.09808 0.107 0 0.001485 0"/>
      <geom name="trunk" type="box" size="0.1881 0.04675 0.057" conaffinity="3"/>
      <geom name="head" type="sphere" size="0.06" pos="0.285 0 -0.01" conaffinity="3"/>
      <geom class="visual" type="box" size="0.1881 0.055 0.05" material="shell"/>
      <site name="imu" size="0.01" group="4"/>{legs}{on_trunk}
    </body>
  </worldbody>
  <actuator>{leg_actuators}{actuators}
  </actuator>
  <keyframe>
    <key name="home" qpos="0 0 {height:.4f} 1 0 0 0 {home}" ctrl="{home}"/>
  </keyframe>
</mujoco>
"""


def home_height() -> float:
    """The base above the ground when all feet touch it at LEG_HOME [m]."""
    _, thigh, calf = LEG_HOME
    along, radius = FOOT
    pitch = thigh + calf
    return THIGH * cos(thigh) + CALF * cos(pitch) + along * sin(pitch) + radius


def position_actuator(joint: str, kp: float, kd: float) -> str:
    """A PD controller whose target can be delayed up to four substeps (`actuator_delay`)."""
    return f"""
    <position name="{joint}" joint="{joint}" kp="{kp:g}" kv="{kd:g}" delay="0" nsample="5"/>"""


def _leg(leg: str) -> str:
    """MJCF of one leg, mirrored left to right; hip and hip offset also front to rear."""
    x = 1 if leg[0] == "F" else -1
    y = 1 if leg[1] == "L" else -1
    thigh_class = "thigh_front" if x > 0 else "thigh_rear"
    return f"""
      <body name="{leg}_hip" pos="{0.1934 * x} {0.0465 * y} 0">
        <joint name="{leg}_hip_joint" class="hip"/>
        <inertial pos="{-0.0054 * x} {0.00194 * y} -0.000105" mass="0.678"
          fullinertia="0.00048 0.000884 0.000596 {-3.01e-6 * x * y} {1.11e-6 * x} {-1.42e-6 * y}"/>
        <geom class="visual" type="cylinder" size="0.046 0.02" pos="0 {0.08 * y} 0"
          quat="1 1 0 0" material="shell"/>
        <body name="{leg}_thigh" pos="0 {0.0955 * y} 0">
          <joint name="{leg}_thigh_joint" class="{thigh_class}"/>
          <inertial pos="-0.00374 {-0.0223 * y} -0.0327" mass="1.152"
            fullinertia="0.00584 0.0058 0.00103 {8.72e-5 * y} -0.000289 {8.08e-4 * y}"/>
          <geom name="{leg}_thigh" type="capsule" size="0.02" fromto="0 0 0 0 0 {-THIGH}"
            conaffinity="3" group="2" material="shell"/>
          <body name="{leg}_calf" pos="0 0 {-THIGH}">
            <joint name="{leg}_calf_joint" class="calf"/>
            <inertial pos="0.00629595 {-0.000622121 * y} -0.141417" mass="0.241352"
              fullinertia="0.001464 0.00149 5.327e-05 {2.175e-7 * y} 5.967e-06 {1.225e-5 * y}"/>
            <geom name="{leg}_calf" type="capsule" size="0.013" fromto="0 0 0 0 0 -0.18"
              conaffinity="3" group="2" material="dark"/>
            <geom name="{leg}" class="foot"/>
            <site name="{leg}" class="foot"/>
          </body>
        </body>
      </body>"""


GO2 = Robot(
    name="go2",
    # Gains of unitree_rl_lab and UMI-on-Legs.
    mjcf=go2_mjcf(name="go2", kp=40.0, kd=1.0),
    base="base",
    joints=LEG_JOINTS,
    velocity_limits=LEG_VELOCITY_LIMITS,
    feet=LEGS,
    limbs={"legs": LEG_JOINTS},
    mirror=LEG_MIRROR,
    action_scale=LEG_ACTION_SCALE,
    undesired_contacts=LEG_UNDESIRED_CONTACTS,
)
