"""A robot whose MJCF is in an awkward order."""

import pytest
import torch

from robo_rl.tasks.robots.robot import Robot

# Everything here is so small that a second thread costs more than it brings.
torch.set_num_threads(1)


def _leg(side: str, y: float) -> str:
    return f"""
      <body name="{side}_leg" pos="0 {y} 0">
        <joint name="{side}_hip" axis="0 1 0" range="-1 1" damping="0.5" actuatorfrcrange="-9 9"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.2" mass="0.4" contype="0"
          conaffinity="0"/>
        <body name="{side}_shin" pos="0 0 -0.2">
          <joint name="{side}_knee" axis="0 1 0" range="-2 0.5" damping="0.5"
            actuatorfrcrange="-7 8"/>
          <geom name="{side}_foot" type="sphere" size="0.05" pos="0 0 -0.15" mass="0.3"
            friction="0.7 0.005 0.0001"/>
        </body>
      </body>"""


MJCF = f"""
<mujoco model="walker">
  <compiler angle="radian"/>
  <option integrator="implicitfast"/>
  <default>
    <position kp="40" kv="1.5" nsample="5" delay="0"/>
  </default>
  <worldbody>
    <body name="hull" pos="0 0 0.4">
      <freejoint/>
      <inertial pos="0.01 0.02 0.03" mass="4" diaginertia="0.03 0.05 0.06"/>
      <geom type="box" size="0.15 0.1 0.05"/>
      <body name="tail" pos="-0.15 0 0">
        <joint name="tail" axis="0 0 1" stiffness="2" damping="0.1"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 -0.2 0 0" mass="0.2"/>
      </body>{_leg("R", -0.12)}
      <body name="arm" pos="0.15 0 0.05">
        <joint name="arm" axis="0 1 0" range="-1.5 1.5" damping="0.2" actuatorfrcrange="-5 5"/>
        <inertial pos="0.1 0 0" mass="0.5" diaginertia="0.001 0.002 0.002"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0" contype="0" conaffinity="0"/>
        <site name="tool" pos="0.2 0 0.01" euler="0.3 0.2 0.1"/>
      </body>{_leg("L", 0.12)}
    </body>
  </worldbody>
  <actuator>
    <position name="arm" joint="arm"/>
    <position name="L_knee" joint="L_knee"/>
    <position name="R_knee" joint="R_knee"/>
    <position name="L_hip" joint="L_hip"/>
    <position name="R_hip" joint="R_hip"/>
  </actuator>
  <keyframe>
    <key name="home" qpos="0 0 0.38 1 0 0 0 0.2 0.3 -0.6 0.5 0.3 -0.6"
      ctrl="0.5 -0.6 -0.6 0.3 0.3"/>
  </keyframe>
</mujoco>
"""
JOINTS = ("L_hip", "L_knee", "R_hip", "R_knee", "arm")


@pytest.fixture(scope="session")
def walker() -> Robot:
    """Two legs, an arm and a tail that nobody moves; the policy's joints are in an order of their
    own, and so are the actuators."""
    return Robot(
        name="walker",
        mjcf=MJCF,
        base="hull",
        joints=JOINTS,
        velocity_limits=dict.fromkeys(JOINTS, 20.0),
        feet=("L_foot", "R_foot"),
        limbs={"legs": JOINTS[:4], "arm": JOINTS[4:]},
        ee="tool",
        mirror={
            "L_hip": ("R_hip", 1.0),
            "R_hip": ("L_hip", 1.0),
            "L_knee": ("R_knee", 1.0),
            "R_knee": ("L_knee", 1.0),
            "arm": ("arm", 1.0),
        },
        action_scale=dict.fromkeys(JOINTS, 0.3),
        undesired_contacts={"legs": ("hull",), "arm": ("tail",)},
    )
