"""A robot and its mirror image, made by hand, see and do what EnvSpec.mirror says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from robo_rl import api, registry
from robo_rl.tasks.backends.mujoco_batch import MujocoSim
from robo_rl.tasks.env import NOMINAL, SimEnv, TaskCfg
from robo_rl.tasks.terms.commands import Gait
from robo_rl.tasks.terms.rotations import from_euler

TASKS = [name for name in registry.tasks() if name.startswith("go2")]
FLIPPED = torch.tensor([1.0, -1.0, 1.0])
"""Of a position or velocity; an angular one has the opposite signs."""


def pair(name: str, *, history: int = 1) -> SimEnv:
    """Two nominal robots that no time limit ends."""
    cfg = registry.task(name)
    assert isinstance(cfg, TaskCfg)
    plain = replace(
        cfg,
        randomise=NOMINAL,
        terminations={},
        episode_length_s=1000.0,
        history={"actor": history},
    )
    return plain.build(num_envs=2)


def mirrored_joints(env: SimEnv, value: Tensor) -> Tensor:
    """A robot's joint values on the other side: left is right, and what does not turn about a y
    axis turns the other way."""
    assert isinstance(env.sim, MujocoSim)
    names = [joint.name for joint in env.spec.joints]
    out = torch.zeros_like(value)
    for i, name in enumerate(names):
        other = name[0] + {"L": "R", "R": "L"}[name[1]] + name[2:] if name[1] in "LR" else name
        about_y = abs(env.sim.model.joint(name).axis[1]) == 1.0
        out[..., names.index(other)] = value[..., i] * (1.0 if about_y else -1.0)
    return out


def both(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second])


def place(env: SimEnv, generator: torch.Generator) -> None:
    """Put the first robot anywhere, and the second where a mirror shows it."""

    def some(size: int, width: float) -> Tensor:
        return width * (2.0 * torch.rand(size, generator=generator) - 1.0)

    angles, pos, lin, ang = some(3, 0.3), some(3, 1.0), some(3, 0.5), some(3, 0.5)
    pos[2] = env.sim.home_height + 0.03
    default = torch.tensor([joint.default for joint in env.spec.joints])
    joint_pos, joint_vel = default + some(len(default), 0.2), some(len(default), 1.0)
    env.sim.reset(
        torch.arange(2),
        base_pos_w=both(pos, pos * FLIPPED),
        base_quat_wxyz=from_euler(both(angles, -angles * FLIPPED)),
        base_vel=both(torch.cat([lin, ang]), torch.cat([lin * FLIPPED, -ang * FLIPPED])),
        joint_pos=both(joint_pos, mirrored_joints(env, joint_pos)),
        joint_vel=both(joint_vel, mirrored_joints(env, joint_vel)),
    )
    env.view = replace(env.view)
    gait = env.command_states.get("gait")
    if isinstance(gait, Gait):
        gait.hold(torch.tensor([[1.0, 0.08]]).repeat(2, 1), torch.arange(2))
        gait.clock[1] = (gait.clock[0] + 0.5) % 1.0  # half a stride: left is right
    if "ee" in env.command_states:
        where, vel, turn = torch.tensor([0.4, 0.0, 0.6]) + some(3, 0.2), some(3, 0.2), some(3, 0.2)
        rpy = some(3, 0.4)
        first = torch.cat([where, rpy, vel, turn])
        second = torch.cat([where * FLIPPED, -rpy * FLIPPED, vel * FLIPPED, -turn * FLIPPED])
        env.set_command("ee", both(first, second))
    twist = torch.tensor([0.4, 0.2, -0.3])
    env.set_command("base", both(twist, twist * torch.tensor([1.0, -1.0, -1.0])))


def image(value: Tensor, mirror: api.Mirror) -> Tensor:
    return value[..., list(mirror.index)] * torch.tensor(mirror.sign)


@pytest.mark.parametrize("name", TASKS)
def test_a_mirrored_robot_sees_the_mirrored_observation(name: str) -> None:
    env, generator = pair(name), torch.Generator().manual_seed(0)
    assert set(env.spec.mirror) == {"actor", "critic", "action"}
    for _ in range(10):
        place(env, generator)
        for group, obs in env.observe().items():
            mirror = env.spec.mirror[group]
            np.testing.assert_allclose(
                image(obs[0], mirror), obs[1], rtol=1e-4, atol=2e-4, err_msg=group
            )
            assert not torch.allclose(obs[0], obs[1], atol=1e-2)


@pytest.mark.parametrize("name", TASKS)
def test_mirrored_actions_move_a_mirrored_robot_alike_for_a_second(name: str) -> None:
    env, generator = pair(name, history=2), torch.Generator().manual_seed(1)
    place(env, generator)
    mirror, size = env.spec.mirror, len(env.spec.joints)
    for _ in range(50):
        action = 0.5 * torch.randn(size, generator=generator)
        step = env.step(both(action, image(action, mirror["action"])))
        for group, obs in step.obs.items():
            # Forces on the feet are the stiffest, in newtons.
            bound = 1.0 if group == "critic" else 5e-3
            assert (image(obs[0], mirror[group]) - obs[1]).abs().max() < bound
        np.testing.assert_allclose(step.reward[0], step.reward[1], rtol=1e-2, atol=1e-3)
    assert env.view.foot_contact.any()
    joint_pos = env.sim.state.joint_pos
    np.testing.assert_allclose(mirrored_joints(env, joint_pos[0]), joint_pos[1], atol=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_a_mirror_in_a_mirror_shows_the_thing_itself(name: str) -> None:
    spec = pair(name).spec
    sizes = {group: given.size for group, given in spec.obs.items()} | {"action": len(spec.joints)}
    for group, mirror in spec.mirror.items():
        value = torch.arange(1.0, sizes[group] + 1.0)
        assert torch.equal(image(image(value, mirror), mirror), value)
        assert set(mirror.sign) <= {-1.0, 1.0}


def test_a_robot_without_a_mirror_has_none() -> None:
    cfg = registry.task("go2-velocity")
    assert isinstance(cfg, TaskCfg)
    env = replace(cfg, robot=replace(cfg.robot, mirror={})).build(num_envs=1)
    assert env.spec.mirror == {}
