"""Unitree Go2 with an ARX X5 arm of six joints on its back: 18 joints, 18.4 kg.

Sources of the arm:
- masses, centres of mass, inertias, lengths and ranges: `arx5go2.urdf` of RoboDuet (commit
  0d45ff4). Differs: its frames turn by pi about x at joints 3 and 6, ours do not, so that the tool
  points ahead and up is up when the wrist is at zero; offsets across the sagittal plane (under
  5 mm) are zero and joint 1 has the smaller of its two limits both ways, so that the robot is its
  own mirror image; the fingers are closed and do not move;
- mount, gains and torque limits: UMI-on-Legs (`go2_arx5_finray_x85_z94.urdf` and its
  configuration), which ran on the robot;
- tool centre and joint speeds: arx5-sdk (`models/X5.urdf`, `include/app/config.h`);
- armature: i2rt's YAM in mjlab, an arm of the same motor types (DM4340, DM4310).
"""

from robo_rl.tasks.robots.go2 import (
    LEG_ACTION_SCALE,
    LEG_JOINTS,
    LEG_MIRROR,
    LEG_UNDESIRED_CONTACTS,
    LEG_VELOCITY_LIMITS,
    LEGS,
    go2_mjcf,
    position_actuator,
)
from robo_rl.tasks.robots.robot import Robot

ARM_JOINTS = tuple(f"arm_joint{i}" for i in range(1, 7))
ARM_HOME = (0.0, 1.2, 0.65, 0.55, 0.0, 0.0)
"""[rad]: the tool level, 0.49 m ahead of the base and 0.65 m above the ground. From here it
moves 0.15 m along each axis without turning; lower, the wrist would be at its limit."""
ARM_KP = (100.0, 100.0, 100.0, 20.0, 20.0, 5.0)
ARM_KD = (3.0, 3.0, 3.0, 2.0, 1.0, 0.5)
ARM_VELOCITY_LIMITS = (5.0, 5.0, 5.5, 5.5, 5.0, 5.0)
ARM_MIRROR = (-1.0, 1.0, 1.0, 1.0, -1.0, -1.0)
ARM_ACTION_SCALE = 0.5
"""[rad]: twice the legs', whose poses stay near the default while the arm crosses its range."""

ARM = """
      <body name="arm_base" pos="0.085 0 0.094" childclass="arm">
        <inertial pos="0 0 0.0273" mass="0.4404" diaginertia="0.00017 0.00018 0.00016"/>
        <geom class="visual" type="box" size="0.045 0.04 0.02" pos="0 0 -0.018"/>
        <geom class="visual" type="cylinder" size="0.036 0.03" pos="0 0 0.03" material="shell"/>
        <geom name="arm_base" type="capsule" size="0.036" fromto="0 0 -0.03 0 0 0.03" contype="0"
          conaffinity="3"/>
        <body name="arm_link1" pos="0 0 0.0605">
          <joint name="arm_joint1" axis="0 0 1" range="-2.618 2.618" armature="0.032"
            actuatorfrcrange="-20 20"/>
          <inertial pos="0.0059 0 0.0175" mass="0.0602" fullinertia="7e-5 3e-5 7e-5 0 1e-5 0"/>
          <geom class="visual" type="capsule" size="0.032" fromto="0 0 0.01 0.02 0 0.04"/>
          <body name="arm_link2" pos="0.02 0 0.04">
            <joint name="arm_joint2" range="0 3.6652" armature="0.032"
              actuatorfrcrange="-20 20"/>
            <inertial pos="-0.1331 0 0.0003" mass="1.085"
              fullinertia="0.00051 0.01608 0.01613 0 -6e-5 0"/>
            <geom name="arm_link2" type="capsule" size="0.03" fromto="-0.05 0 0 -0.264 0 0"/>
            <geom class="visual" type="cylinder" size="0.036 0.042" quat="1 1 0 0"
              material="shell"/>
            <geom class="visual" type="box" size="0.13 0.021 0.024" pos="-0.132 0 0"/>
            <geom class="visual" type="cylinder" size="0.034 0.04" pos="-0.264 0 0" quat="1 1 0 0"
              material="shell"/>
            <body name="arm_link3" pos="-0.264 0 0">
              <joint name="arm_joint3" axis="0 -1 0" range="0 3.1416" armature="0.032"
                actuatorfrcrange="-15 15"/>
              <inertial pos="0.1872 0 0.0515" mass="0.5031"
                fullinertia="0.00033 0.00387 0.00384 0 0.00039 0"/>
              <geom name="arm_link3" type="capsule" size="0.022" fromto="0.04 0 0.056 0.245 0 0.056"
                group="2" material="dark"/>
              <geom class="visual" type="capsule" size="0.022" fromto="0 0 0 0.04 0 0.056"/>
              <geom class="visual" type="cylinder" size="0.026 0.03" pos="0.245 0 0.056"
                quat="1 1 0 0" material="shell"/>
              <body name="arm_link4" pos="0.245 0 0.056">
                <joint name="arm_joint4" axis="0 -1 0" range="-1.5708 1.5708" armature="0.0018"
                  actuatorfrcrange="-7 7"/>
                <inertial pos="0.0372 0 0.0315" mass="0.0974"
                  fullinertia="0.00016 0.00019 0.00011 0 7e-5 0"/>
                <geom class="visual" type="capsule" size="0.016" fromto="0 0 0 0.03 0 0.04"/>
                <geom class="visual" type="capsule" size="0.016" fromto="0.03 0 0.04 0.067 0 0.04"/>
                <body name="arm_link5" pos="0.06675 0 0.084">
                  <joint name="arm_joint5" axis="0 0 -1" range="-1.5708 1.5708" armature="0.0018"
                    actuatorfrcrange="-5 5"/>
                  <inertial pos="0.003 0 -0.054" mass="0.597"
                    fullinertia="0.00072 0.0007 0.00021 0 -5e-5 0"/>
                  <geom class="visual" type="cylinder" size="0.026 0.042" pos="0 0 -0.072"
                    material="shell"/>
                  <body name="arm_link6" pos="0.03045 0 -0.084">
                    <joint name="arm_joint6" axis="1 0 0" range="-1.5708 1.5708" armature="0.0018"
                      actuatorfrcrange="-5 5"/>
                    <inertial pos="0.0365 0 0.0003" mass="0.3159"
                      diaginertia="0.00031 0.00015 0.00038"/>
                    <geom name="arm_link6" type="capsule" size="0.03" fromto="0 0 0 0.12 0 0"/>
                    <geom class="visual" type="cylinder" size="0.028 0.022" pos="0.02 0 0"
                      quat="1 0 1 0"/>
                    <geom class="visual" type="box" size="0.02 0.05 0.018" pos="0.058 0 0"
                      material="shell"/>
                    <geom class="visual" type="box" size="0.04 0.006 0.011" pos="0.115 0.009 0"
                      material="accent"/>
                    <geom class="visual" type="box" size="0.04 0.006 0.011" pos="0.115 -0.009 0"
                      material="accent"/>
                    <site name="ee" pos="0.145 0 0"/>
                    <body name="arm_fingers">
                      <inertial pos="0.0732 0 0" mass="0.0968" diaginertia="5.8e-5 4e-5 7.8e-5"/>
                    </body>
                  </body>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>"""

GO2_ARX5 = Robot(
    name="go2_arx5",
    mjcf=go2_mjcf(
        "go2_arx5",
        hold=(
            *(-0.098, 0.909, -1.59, 0.098, 0.909, -1.59),
            *(-0.064, 0.91, -1.65, 0.064, 0.91, -1.65),
            *(0.0, 1.175, 0.695, 0.601, 0.0, 0.0),
        ),
        arm=ARM,
        arm_actuators="".join(map(position_actuator, ARM_JOINTS, ARM_KP, ARM_KD)),
        arm_home=ARM_HOME,
    ),
    base="base",
    joints=(*LEG_JOINTS, *ARM_JOINTS),
    velocity_limits=LEG_VELOCITY_LIMITS | dict(zip(ARM_JOINTS, ARM_VELOCITY_LIMITS, strict=True)),
    feet=LEGS,
    limbs={"legs": LEG_JOINTS, "arm": ARM_JOINTS},
    ee="ee",
    mirror=LEG_MIRROR
    | {joint: (joint, sign) for joint, sign in zip(ARM_JOINTS, ARM_MIRROR, strict=True)},
    action_scale=LEG_ACTION_SCALE | dict.fromkeys(ARM_JOINTS, ARM_ACTION_SCALE),
    undesired_contacts={
        "legs": LEG_UNDESIRED_CONTACTS,
        "arm": ("arm_link2", "arm_link3", "arm_link6"),
    },
)
