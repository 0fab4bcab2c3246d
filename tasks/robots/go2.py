"""Unitree Go2 of primitive shapes: 12 joints, 15.2 kg.

Source of every number without one of its own: `unitree_go2/go2.xml` of MuJoCo Menagerie (commit
2ffe3e3), its inertias turned from principal axes into the link's frame. Differs: the trunk's
products of inertia across the sagittal plane (under 1 % of its smallest moment) are zero, so that
the robot is its own mirror image; joint damping is 0.1 instead of 2 Nm s/rad, since the actuators
here bring their own; there is no joint friction (0.2 Nm there, 1 % of what the motors give), which
costs a fifth of the simulation's speed.
"""

from collections.abc import Sequence
from math import cos, sin

from robo_rl.tasks.robots.robot import Robot

LEGS = ("FL", "FR", "RL", "RR")
LEG_JOINTS = tuple(f"{leg}_{link}_joint" for leg in LEGS for link in ("hip", "thigh", "calf"))
LEG_HOME = (0.0, 0.9, -1.8)
"""Hip, thigh and calf of the default pose [rad]."""
LEG_VELOCITY_LIMITS = {joint: 20.07 if "calf" in joint else 30.1 for joint in LEG_JOINTS}
"""[rad/s], from `go2_description.urdf` of UMI-on-Legs."""
LEG_MIRROR = {
    joint: (joint[0] + {"L": "R", "R": "L"}[joint[1]] + joint[2:], -1.0 if "hip" in joint else 1.0)
    for joint in LEG_JOINTS
}
LEG_ACTION_SCALE = dict.fromkeys(LEG_JOINTS, 0.25)
"""[rad], as in Isaac Lab, legged_gym, UMI-on-Legs and RoboDuet."""
LEG_UNDESIRED_CONTACTS = ("base", *(f"{leg}_thigh" for leg in LEGS))

KP, KD = 40.0, 1.0
"""Of the legs [Nm/rad, Nm s/rad], from unitree_rl_lab and UMI-on-Legs."""
LINK = 0.213
"""Hip to knee, and knee to foot [m]."""
FOOT_X, FOOT_RADIUS = -0.002, 0.022
"""The foot sphere's centre lies this far ahead of the calf's axis [m]."""


def go2_mjcf(
    name: str,
    *,
    hold: Sequence[float],
    arm: str = "",
    arm_actuators: str = "",
    arm_home: Sequence[float] = (),
) -> str:
    """MJCF of a Go2, bare or with an arm.

    Geoms collide by bits: 1 with the floor, 2 arm with trunk and legs, 4 lower legs with those of
    other legs. Feet alone decide their friction, whatever they stand on.

    Args:
        hold: targets of all actuators that hold the default pose against gravity [rad]: the pose
            plus its static torque over kp.
        arm: bodies in the trunk's frame.
        arm_actuators: of the arm's joints.
        arm_home: the arm's default pose [rad].
    """
    pose = _numbers((0.0, 0.0, home_height(), 1.0, 0.0, 0.0, 0.0, *LEG_HOME * 4, *arm_home))
    legs = "".join(_leg(leg) for leg in LEGS)
    leg_actuators = "".join(position_actuator(joint, KP, KD) for joint in LEG_JOINTS)
    return f"""\
<mujoco model="{name}">
  <compiler angle="radian" fusestatic="true"/>
  <option timestep="0.005" integrator="implicitfast" iterations="6" ls_iterations="8">
    <flag island="disable"/>
  </option>
  <default>
    <default class="{name}">
      <joint axis="0 1 0" armature="0.01" damping="0.1"/>
      <geom contype="0" conaffinity="3" group="3"/>
      <site size="0.01" group="4"/>
      <default class="hip">
        <joint axis="1 0 0" range="-1.0472 1.0472" actuatorfrcrange="-23.7 23.7"/>
      </default>
      <default class="front_thigh">
        <joint range="-1.5708 3.4907" actuatorfrcrange="-23.7 23.7"/>
      </default>
      <default class="rear_thigh">
        <joint range="-0.5236 4.5379" actuatorfrcrange="-23.7 23.7"/>
      </default>
      <default class="calf">
        <joint range="-2.7227 -0.83776" actuatorfrcrange="-45.43 45.43"/>
      </default>
      <default class="foot">
        <geom type="sphere" size="{FOOT_RADIUS}" pos="{FOOT_X} 0 {-LINK}" contype="4"
          conaffinity="5" priority="1" friction="0.8 0.02 0.01" group="2" material="rubber"/>
        <site pos="{FOOT_X} 0 {-LINK}"/>
      </default>
      <default class="arm">
        <geom contype="2" conaffinity="1"/>
      </default>
      <default class="visual">
        <geom conaffinity="0" group="2" material="dark"/>
      </default>
    </default>
  </default>
  <asset>
    <material name="shell" rgba="0.80 0.82 0.85 1" specular="0.5" shininess="0.6"/>
    <material name="dark" rgba="0.16 0.17 0.19 1" specular="0.4" shininess="0.4"/>
    <material name="rubber" rgba="0.06 0.06 0.06 1" specular="0.1" shininess="0.1"/>
    <material name="accent" rgba="0.93 0.46 0.10 1" specular="0.5" shininess="0.5"/>
  </asset>
  <worldbody>
    <body name="base" pos="0 0 {home_height():.4f}" childclass="{name}">
      <freejoint name="root"/>
      <inertial pos="0.021112 0 -0.005366" mass="6.921"
        fullinertia="0.02448 0.09808 0.107 0 0.001485 0"/>
      <site name="imu"/>
      <geom name="trunk" type="box" size="0.1881 0.04675 0.057"/>
      <geom name="head" type="sphere" size="0.055" pos="0.29 0 -0.01"/>
      <geom class="visual" type="box" size="0.175 0.062 0.042" material="shell"/>
      <geom class="visual" type="box" size="0.18 0.047 0.057"/>
      <geom class="visual" type="capsule" size="0.044" fromto="0.2 0 0 0.26 0 0" material="shell"/>
      <geom class="visual" type="ellipsoid" size="0.052 0.047 0.043" pos="0.288 0 -0.006"/>
      <geom class="visual" type="box" size="0.003 0.022 0.004" pos="0.338 0 0.002"
        material="accent"/>{legs}{arm}
    </body>
  </worldbody>
  <actuator>{leg_actuators}{arm_actuators}
  </actuator>
  <keyframe>
    <key name="home" qpos="{pose}"
      ctrl="{_numbers(hold)}"/>
  </keyframe>
</mujoco>
"""


def home_height() -> float:
    """The base's height when all feet touch the ground in the default pose [m]."""
    _, thigh, calf = LEG_HOME
    pitch = thigh + calf
    return LINK * cos(thigh) + LINK * cos(pitch) + FOOT_X * sin(pitch) + FOOT_RADIUS


def position_actuator(joint: str, kp: float, kd: float) -> str:
    """A joint's PD controller; its target can be delayed by up to four substeps."""
    return f"""
    <position name="{joint}" joint="{joint}" kp="{kp:g}" kv="{kd:g}" delay="0" nsample="4"/>"""


def _leg(leg: str) -> str:
    """One leg, mirrored left to right; the hip also front to rear."""
    x = 1 if leg[0] == "F" else -1
    y = 1 if leg[1] == "L" else -1
    thigh = "front_thigh" if x > 0 else "rear_thigh"
    return f"""
      <body name="{leg}_hip" pos="{0.1934 * x} {0.0465 * y} 0">
        <joint name="{leg}_hip_joint" class="hip"/>
        <inertial pos="{-0.0054 * x} {0.00194 * y} -0.000105" mass="0.678"
          fullinertia="0.00048 0.000884 0.000596 {-3.01e-6 * x * y} {1.11e-6 * x} {-1.42e-6 * y}"/>
        <geom class="visual" type="cylinder" size="0.044 0.03" quat="1 0 1 0"/>
        <geom class="visual" type="cylinder" size="0.046 0.022" pos="0 {0.075 * y} 0"
          quat="1 1 0 0" material="shell"/>
        <body name="{leg}_thigh" pos="0 {0.0955 * y} 0">
          <joint name="{leg}_thigh_joint" class="{thigh}"/>
          <inertial pos="-0.00374 {-0.0223 * y} -0.0327" mass="1.152"
            fullinertia="0.00584 0.0058 0.00103 {8.72e-5 * y} -0.000289 {8.08e-4 * y}"/>
          <geom name="{leg}_thigh" type="capsule" size="0.02" fromto="0 0 0 0 0 {-LINK}"/>
          <geom class="visual" type="cylinder" size="0.044 0.016" pos="0 {0.012 * y} 0"
            quat="1 1 0 0"/>
          <geom class="visual" type="box" size="0.019 0.014 0.095" pos="-0.006 0 -0.09"
            material="shell"/>
          <geom class="visual" type="cylinder" size="0.026 0.017" pos="0 0 {-LINK}"
            quat="1 1 0 0"/>
          <body name="{leg}_calf" pos="0 0 {-LINK}">
            <joint name="{leg}_calf_joint" class="calf"/>
            <inertial pos="0.00629595 {-0.000622121 * y} -0.141417" mass="0.241352"
              fullinertia="0.001464 0.00149 5.327e-05 {2.175e-7 * y} 5.967e-06 {1.225e-5 * y}"/>
            <geom name="{leg}_calf" type="capsule" size="0.012" fromto="0.006 0 -0.01 0 0 {-LINK}"
              contype="4" conaffinity="7" group="2" material="dark"/>
            <geom name="{leg}" class="foot"/>
            <site name="{leg}" class="foot"/>
          </body>
        </body>
      </body>"""


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.5g}" for value in values)


GO2 = Robot(
    name="go2",
    mjcf=go2_mjcf("go2", hold=(-0.062, 0.91, -1.652, 0.062, 0.91, -1.652) * 2),
    base="base",
    joints=LEG_JOINTS,
    velocity_limits=LEG_VELOCITY_LIMITS,
    feet=LEGS,
    limbs={"legs": LEG_JOINTS},
    mirror=LEG_MIRROR,
    action_scale=LEG_ACTION_SCALE,
    undesired_contacts={"legs": LEG_UNDESIRED_CONTACTS},
)
