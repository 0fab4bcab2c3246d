"""go2-velocity: walk at a commanded velocity on flat ground."""

from robo_rl.tasks.env import TaskCfg
from robo_rl.tasks.robots.go2 import GO2
from robo_rl.tasks.robots.robot import Robot
from robo_rl.tasks.terms import metrics as m
from robo_rl.tasks.terms import observations as o
from robo_rl.tasks.terms import rewards as r
from robo_rl.tasks.terms import terminations as t
from robo_rl.tasks.terms.commands import BaseTwistCfg


def velocity(name: str, robot: Robot) -> TaskCfg:
    """Velocity tracking of any legged robot whose limbs include `legs`, with one reward group.

    Rewards as Isaac Lab's and mjlab's flat-ground velocity tasks have them.
    """
    measured = {
        "gyro": o.BaseAngVel(noise=0.2),
        "gravity": o.Gravity(noise=0.05),
        "joint_pos": o.JointPos(noise=0.01),
        "joint_vel": o.JointVel(noise=1.5),
        "last_action": o.LastAction(),
        "base_twist_command": o.BaseTwistCommand(),
    }
    return TaskCfg(
        name=name,
        score="return",
        robot=robot,
        commands={"base": BaseTwistCfg()},
        observations={
            "actor": measured,
            "critic": {
                **o.exact(measured),
                "base_lin_vel": o.BaseLinVel(),
                "base_height": o.BaseHeight(),
                "foot_force": o.FootForce(),
                "foot_height": o.FootHeight(),
            },
        },
        rewards={
            "locomotion": {
                "alive": r.Alive(weight=0.5),
                "track_lin_vel": r.TrackBaseLinVel(weight=1.5, std=0.5),
                "track_yaw_rate": r.TrackYawRate(weight=0.75, std=0.5),
                "vertical_vel": r.VerticalVel(weight=-2.0),
                "roll_pitch_rate": r.RollPitchRate(weight=-0.05),
                "tilt": r.Tilt(weight=-2.5),
                "torque": r.Torque(weight=-2e-4),
                "action_rate": r.ActionRate(weight=-0.01),
                "joint_limit": r.JointLimit(weight=-2.0),
                "air_time": r.AirTime(weight=2.0, threshold_s=0.25),
                "foot_slip": r.FootSlip(weight=-0.1),
                "stand_still": r.StandStill(weight=-0.1),
                "posture": r.Posture(weight=-0.1),
                "collision": r.Collision(weight=-0.5),
            },
        },
        terminations={"tilted": t.Tilted(), "low": t.Low()},
        metrics={
            "base_velocity": m.BaseVelError(),
            "yaw_rate": m.YawRateError(),
            "power": m.Power(),
        },
        train={
            "iterations": 1000,
            "ppo": {
                "num_steps": 12,
                "num_epochs": 4,
                "gamma": 0.97,
                "desired_kl": 0.03,
                "entropy": 0.0,
                "initial_std": 0.5,
            },
        },
    )


def go2_velocity() -> TaskCfg:
    """Unitree Go2."""
    return velocity("go2-velocity", GO2)
