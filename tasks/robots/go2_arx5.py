"""Unitree Go2 with an ARX X5 arm of six joints on its back: 18 joints, 18.4 kg.

Sources: [duet] `arx5go2.urdf` of RoboDuet (commit 0d45ff4): masses, centres of mass, inertias,
lengths; [sdk] arx5-sdk (`models/X5.urdf`, `include/app/config.h`): tool centre and joint speeds;
[umi] UMI-on-Legs: mount, gains and torque limits. Differs from [duet]: its frames rolled by pi at
joints 3 and 6 are not, so that with all wrist joints at zero the tool's x points ahead and its z
up; offsets across the sagittal plane (under 5 mm) are zero and joint 1 has the smaller of its two
limits on both sides, so that the robot is its own mirror image; the fingers are closed and fixed.
"""

from .go2 import (
    LEG_ACTION_SCALE,
    LEG_JOINTS,
    LEG_MIRROR,
    LEG_UNDESIRED_CONTACTS,
    LEG_VELOCITY_LIMITS,
    LEGS,
    go2_mjcf,
    position_actuator,
)
from .robot import Robot

ARM_JOINTS = tuple(f"arm_joint{i}" for i in range(1, 7))
ARM_HOME = (0.0, 1.2, 0.6, 0.6, 0.0, 0.0)

ARM = """
      <body name="arm_base" pos="0.085 0 0.094">
        <inertial pos="0 0 0.0273" mass="0.4404" diaginertia="0.00017 0.00018 0.00016"/>
        <body name="arm_link1" pos="0 0 0.0605">
          <joint name="arm_joint1" axis="0 0 1" range="-2.618 2.618" actuatorfrcrange="-20 20" armature="0.032"/>
          <inertial pos="0.0059 0 0.0175" mass="0.0602" fullinertia="7e-5 3e-5 7e-5 0 1e-5 0"/>
          <body name="arm_link2" pos="0.02 0 0.04">
            <joint name="arm_joint2" axis="0 1 0" range="0 3.6652" actuatorfrcrange="-20 20" armature="0.032"/>
            <inertial pos="-0.1331 0 0.0003" mass="1.085"
              fullinertia="0.00051 0.01608 0.01613 0 -6e-5 0"/>
            <geom name="arm_link2" type="capsule" size="0.03" fromto="0 0 0 -0.264 0 0" contype="2" group="2"/>
            <body name="arm_link3" pos="-0.264 0 0">
              <joint name="arm_joint3" axis="0 -1 0" range="0 3.1416" actuatorfrcrange="-15 15" armature="0.032"/>
              <inertial pos="0.1872 0 0.0515" mass="0.5031"
                fullinertia="0.00033 0.00387 0.00384 0 0.00039 0"/>
              <geom name="arm_link3" type="capsule" size="0.025" fromto="0.05 0 0.056 0.245 0 0.056" contype="2" group="2"/>
              <body name="arm_link4" pos="0.245 0 0.056">
                <joint name="arm_joint4" axis="0 -1 0" range="-1.5708 1.5708" actuatorfrcrange="-7 7" armature="0.0018"/>
                <inertial pos="0.0372 0 0.0315" mass="0.0974"
                  fullinertia="0.00016 0.00019 0.00011 0 7e-5 0"/>
                <body name="arm_link5" pos="0.06675 0 0.084">
                  <joint name="arm_joint5" axis="0 0 -1" range="-1.5708 1.5708" actuatorfrcrange="-5 5" armature="0.0018"/>
                  <inertial pos="0.003 0 -0.054" mass="0.597"
                    fullinertia="0.00072 0.0007 0.00021 0 -5e-5 0"/>
                  <body name="arm_link6" pos="0.03045 0 -0.084">
                    <joint name="arm_joint6" axis="1 0 0" range="-1.5708 1.5708" actuatorfrcrange="-5 5" armature="0.0018"/>
                    <inertial pos="0.0365 0 0.0003" mass="0.3159" diaginertia="0.00031 0.00015 0.00038"/>
                    <geom name="arm_link6" type="capsule" size="0.03" fromto="0 0 0 0.13 0 0" contype="2" group="2"/>
                    <site name="ee" pos="0.145 0 0" size="0.01" group="4"/>
                    <body name="gripper">
                      <inertial pos="0.0732 0 0" mass="0.0968" diaginertia="5.8e-5 4e-5 7.8e-5"/>
                    </body>
                  </body>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>"""

ARM_KP = (100.0, 100.0, 100.0, 20.0, 20.0, 5.0)
ARM_KD = (3.0, 3.0, 3.0, 2.0, 1.0, 0.5)

GO2_ARX5 = Robot(
    name="go2_arx5",
    mjcf=go2_mjcf(
        name="go2_arx5",
        kp=40.0,
        kd=1.0,
        on_trunk=ARM,
        actuators="".join(
            position_actuator(joint, kp, kd)
            for joint, kp, kd in zip(ARM_JOINTS, ARM_KP, ARM_KD, strict=True)
        ),
        joints_home=ARM_HOME,
    ),
    base="base",
    joints=(*LEG_JOINTS, *ARM_JOINTS),
    velocity_limits=LEG_VELOCITY_LIMITS
    | dict(zip(ARM_JOINTS, (5.0, 5.0, 5.5, 5.5, 5.0, 5.0), strict=True)),
    feet=LEGS,
    limbs={"legs": LEG_JOINTS, "arm": ARM_JOINTS},
    ee="ee",
    mirror=LEG_MIRROR
    | {
        joint: (joint, sign)
        for joint, sign in zip(ARM_JOINTS, (-1.0, 1.0, 1.0, 1.0, -1.0, -1.0), strict=True)
    },
    action_scale=LEG_ACTION_SCALE | dict.fromkeys(ARM_JOINTS, 0.5),
    undesired_contacts=(*LEG_UNDESIRED_CONTACTS, *(f"arm_link{i}" for i in range(1, 7))),
)
