"""What is measured beside one another does the same work."""

import numpy as np
import pytest
import torch

from robo_rl import registry
from robo_rl.tasks.backends.mujoco_batch import MujocoSim
from robo_rl.tasks.bench import throughput
from robo_rl.tasks.env import SimEnv


def test_the_bare_simulator_takes_the_same_steps() -> None:
    env = registry.make("go2_arx5-twist", num_envs=6, seed=0)
    assert isinstance(env, SimEnv)
    assert isinstance(env.sim, MujocoSim)
    bare = env.sim.bare()
    for _ in range(5):
        bare.state[:] = env.sim.batch.state
        env.step(0.2 * torch.randn(6, 18))
        bare.ctrl[:] = env.sim.batch.ctrl
        bare.step(nstep=env.sim.num_substeps)
        np.testing.assert_array_equal(bare.qpos, env.sim.batch.qpos)
        np.testing.assert_array_equal(bare.qvel, env.sim.batch.qvel)


def test_throughput_is_flat_and_of_both() -> None:
    got = throughput("go2-velocity", num_envs=4, repeats=1, steps=2)
    ratio = got["env_steps_per_s"] / got["bare_steps_per_s"]
    assert got["env_to_bare_ratio"] == pytest.approx(ratio)
    assert got["num_envs"] == 4
    assert got["physics_steps"] == 4
    assert all(value > 0.0 for value in got.values())


def test_a_task_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no task 'go2-velocty'"):
        throughput("go2-velocty", num_envs=1)
