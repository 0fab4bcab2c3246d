"""A robot and a task of another package: one file and an entry point, nothing changed here."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from robo_rl import registry
from robo_rl.run import run_cfg
from robo_rl.tasks.env import SimEnv, TaskCfg

HEXAPOD = '''
"""Six legs of two joints each."""

from robo_rl.tasks.env import TaskCfg
from robo_rl.tasks.locomotion.velocity import velocity
from robo_rl.tasks.robots.robot import Robot

LEGS = ("FL", "FR", "ML", "MR", "RL", "RR")
JOINTS = tuple(f"{leg}_{part}" for leg in LEGS for part in ("swing", "lift"))


def leg(name: str) -> str:
    x = {"F": 0.2, "M": 0.0, "R": -0.2}[name[0]]
    y = 1 if name[1] == "L" else -1
    return f"""
      <body name="{name}_coxa" pos="{x} {0.1 * y} 0">
        <joint name="{name}_swing" axis="0 0 1" range="-0.6 0.6" actuatorfrcrange="-6 6"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0 {0.08 * y} 0" mass="0.1"/>
        <body name="{name}_tibia" pos="0 {0.08 * y} 0">
          <joint name="{name}_lift" axis="1 0 0" range="-0.8 0.8" actuatorfrcrange="-6 6"/>
          <geom type="capsule" size="0.015" fromto="0 0 0 0 {0.05 * y} -0.12" mass="0.1"/>
          <geom name="{name}" type="sphere" size="0.02" pos="0 {0.05 * y} -0.12" mass="0.02"/>
        </body>
      </body>"""


ROBOT = Robot(
    name="hexapod",
    mjcf=f"""
<mujoco>
  <compiler angle="radian"/>
  <default>
    <joint armature="0.005" damping="0.05"/>
    <position kp="30" kv="1" delay="0" nsample="2"/>
  </default>
  <worldbody>
    <body name="thorax" pos="0 0 0.14">
      <freejoint/>
      <geom type="box" size="0.25 0.09 0.03" mass="3"/>{"".join(map(leg, LEGS))}
    </body>
  </worldbody>
  <actuator>{"".join(f'<position name="{j}" joint="{j}"/>' for j in JOINTS)}</actuator>
  <keyframe>
    <key name="home" qpos="0 0 0.14 1 0 0 0 {"0 " * 12}" ctrl="{"0 " * 12}"/>
  </keyframe>
</mujoco>""",
    base="thorax",
    joints=JOINTS,
    velocity_limits=dict.fromkeys(JOINTS, 8.0),
    feet=LEGS,
    limbs={"legs": JOINTS},
    mirror={j: (j[0] + {"L": "R", "R": "L"}[j[1]] + j[2:], -1.0) for j in JOINTS},
    action_scale=dict.fromkeys(JOINTS, 0.3),
    undesired_contacts={"legs": ("thorax",)},
)


def hexapod_velocity() -> TaskCfg:
    return velocity("hexapod-velocity", ROBOT)
'''
ENTRY_POINTS = "[robo_rl.tasks]\nhexapod-velocity = their_lab.hexapod:hexapod_velocity\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as pip would have put it there."""
    package, info = tmp_path / "their_lab", tmp_path / "their_lab-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    (package / "hexapod.py").write_text(HEXAPOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("their_lab", "their_lab.hexapod"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_robot_of_another_package_is_found_stands_and_is_described(installed: Path) -> None:
    assert "hexapod-velocity" in registry.tasks()
    env = registry.make("hexapod-velocity", num_envs=4)
    assert isinstance(env, SimEnv)
    fallen = torch.zeros(4, dtype=torch.bool)
    for _ in range(50):
        step = env.step(torch.zeros(4, 12))
        fallen |= step.terminated
        assert all(value.isfinite().all() for value in (*step.obs.values(), step.reward))
    assert not fallen.any()
    assert env.view.foot_contact.float().mean() > 0.5
    spec = env.spec
    assert [joint.kp for joint in spec.joints] == [30.0] * 12
    assert spec.joints[0].position == (-0.6, 0.6)
    np.testing.assert_allclose(spec.action.high, [0.6 / 0.3, 0.8 / 0.3] * 6)
    assert spec.mirror["action"].index == (2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9)


def test_a_robot_of_another_package_is_learnt_with_by_its_tasks_name(installed: Path) -> None:
    cfg = run_cfg("hexapod-velocity", num_envs=8)
    env = cfg.task.build(num_envs=8, device="cpu", seed=0)
    learner = cfg.learner.build(env.spec, num_envs=8, device="cpu", seed=0)
    obs = env.reset(seed=0)
    for _ in range(learner.num_steps):
        step = env.step(learner.act(obs))
        learner.observe(step)
        obs = step.obs
    learner.update()
    assert learner.fault() == ""


def test_a_task_of_ones_own_needs_no_name_in_the_registry(installed: Path) -> None:
    from importlib import import_module

    cfg = import_module("their_lab.hexapod").hexapod_velocity()
    assert isinstance(cfg, TaskCfg)
    assert registry.make(cfg, num_envs=2).num_envs == 2
