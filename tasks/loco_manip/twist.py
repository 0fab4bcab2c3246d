"""go2_arx5-twist: track end-effector poses and twists with an arm on a quadruped that walks."""

from robo_rl.tasks.env import Randomise, TaskCfg
from robo_rl.tasks.robots.go2_arx5 import GO2_ARX5
from robo_rl.tasks.terms import metrics as m
from robo_rl.tasks.terms import observations as o
from robo_rl.tasks.terms import rewards as r
from robo_rl.tasks.terms import terminations as t
from robo_rl.tasks.terms.commands import BaseTwistCfg, EePathCfg, GaitCfg


def go2_arx5_twist() -> TaskCfg:
    """Three reward groups: locomotion, manipulation, contact.

    Source of the task: Vijayan et al. 2025, arXiv:2507.08656, whose weights are not published.
    """
    measured = {
        "gyro": o.BaseAngVel(noise=0.2),
        "gravity": o.Gravity(noise=0.05),
        "joint_pos": o.JointPos(noise=0.01),
        "joint_vel": o.JointVel(noise=1.0),
        "last_action": o.LastAction(),
        "base_twist_command": o.BaseTwistCommand(),
        "ee_pos_error": o.EePosError(),
        "ee_rotation_error": o.EeRotationError(),
        "ee_pos_command": o.EePosCommand(),
        "ee_rotation_command": o.EeRotationCommand(),
        "ee_twist_command": o.EeTwistCommand(),
        "ee_goal": o.EeGoal(),
        "foot_height_command": o.FootHeightCommand(),
        "foot_phase": o.FootPhase(),
    }
    return TaskCfg(
        name="go2_arx5-twist",
        score="return",
        robot=GO2_ARX5,
        head_of_limb={"legs": "locomotion", "arm": "manipulation"},
        commands={
            "base": BaseTwistCfg(
                forward=(-0.5, 0.6), left=(-0.3, 0.3), turn=(-0.5, 0.5), standing=0.4
            ),
            "gait": GaitCfg(),
            "ee": EePathCfg(),
        },
        observations={
            "actor": measured,
            "critic": {
                **o.exact(measured),
                "base_lin_vel": o.BaseLinVel(),
                "base_height": o.BaseHeight(),
                "ee_twist": o.EeTwist(),
                "foot_force": o.FootForce(),
                "foot_height": o.FootHeight(),
                "joint_torque": o.JointTorque(),
            },
        },
        rewards={
            "locomotion": {
                "track_lin_vel": r.TrackBaseLinVel(weight=2.0, std=0.35),
                "track_yaw_rate": r.TrackYawRate(weight=1.0, std=0.35),
                "alive": r.Alive(weight=1.0),
                "height": r.BaseHeightError(weight=-20.0),
                "tilt": r.Tilt(weight=-1.0),
                "vertical_vel": r.VerticalVel(weight=-1.0),
                "roll_pitch_rate": r.RollPitchRate(weight=-0.05),
                "torque": r.Torque(weight=-1e-4, limb="legs"),
                "action_rate": r.ActionRate(weight=-0.01, limb="legs"),
                "joint_limit": r.JointLimit(weight=-2.0, limb="legs"),
                "posture": r.Posture(weight=-0.2, limb="legs"),
                "collision": r.Collision(weight=-0.5, limb="legs"),
            },
            "manipulation": {
                "track_pos": r.TrackEePos(weight=2.0, std=0.25),
                "track_pos_fine": r.TrackEePos(weight=2.0, std=0.06),
                "track_rotation": r.TrackEeRotation(weight=1.5, std=0.5),
                "track_lin_vel": r.TrackEeLinVel(weight=0.5, std=0.3),
                "track_ang_vel": r.TrackEeAngVel(weight=0.25, std=1.0),
                "distance": r.EeDistance(weight=-2.0),
                "angle": r.EeAngle(weight=-0.5),
                "torque": r.Torque(weight=-2e-4, limb="arm"),
                "joint_speed": r.JointSpeed(weight=-1e-3, limb="arm"),
                "action_rate": r.ActionRate(weight=-0.01, limb="arm"),
                "joint_limit": r.JointLimit(weight=-1.0, limb="arm"),
                "collision": r.Collision(weight=-0.5, limb="arm"),
            },
            "contact": {
                "track_contact": r.TrackContact(weight=1.0),
                "swing_force": r.SwingForce(weight=-1.0, std=30.0),
                "stance_speed": r.StanceSpeed(weight=-1.0, std=0.3),
                "track_foot_height": r.TrackFootHeight(weight=1.0, std=0.03),
            },
        },
        terminations={"tilted": t.Tilted(), "low": t.Low()},
        metrics={
            "ee_position": m.EePosError(),
            "ee_rotation": m.EeRotationError(),
            "ee_velocity": m.EeLinVelError(),
            "ee_angular_velocity": m.EeAngVelError(),
            "base_velocity": m.BaseVelError(),
            "yaw_rate": m.YawRateError(),
            "contact_agreement": m.ContactAgreement(),
            "power": m.Power(),
        },
        randomise=Randomise(ee_mass=(0.0, 0.2)),
        train={
            "iterations": 4000,
            "ppo": {
                # Short rollouts: the divergence bounds an update, so that many small ones learn
                # twice as much from the same steps.
                "num_steps": 12,
                "num_epochs": 4,
                "gamma": 0.97,
                "gammas": {"manipulation": 0.93},
                "desired_kl": 0.03,
                "entropy": 0.0,
                "initial_std": 0.4,
            },
        },
    )
