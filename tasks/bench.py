"""How fast a task's environments step, beside the bare simulator."""

from statistics import median
from time import perf_counter
from typing import Any

import torch

from robo_rl import registry
from robo_rl.tasks.backends.mujoco_batch import MujocoSim
from robo_rl.tasks.env import SimEnv


def throughput(
    task: str = "go2_arx5-twist",
    *,
    num_envs: int = 1024,
    repeats: int = 5,
    steps: int = 20,
    seed: int = 0,
) -> dict[str, float]:
    """Steps per second, over all environments, of `env.step` and of a bare `Batch.step`: medians of
    repeats.

    The two take each step in turn, from the same states with the same controls, model, substeps
    and threads: what else runs on the machine slows both alike, and neither's robots fall more.
    Episodes, commands and pushes are spread over their times, as in a long training.
    """
    env = registry.make(task, num_envs=num_envs, seed=seed)
    if not isinstance(env, SimEnv) or not isinstance(env.sim, MujocoSim):
        raise ValueError(
            f"task {task!r} does not run on MuJoCo's batch; there is nothing to compare"
        )
    sim, bare = env.sim, env.sim.bare()
    generator = torch.Generator().manual_seed(seed)
    env.reset(seed=seed, stagger=True)
    env.load_state_dict(_spread(env.state_dict(), generator))
    env_rates, bare_rates, ratios = [], [], []
    for _ in range(repeats + 1):
        env_s = bare_s = 0.0
        for _ in range(steps):
            action = 0.2 * torch.randn(env.view.action.shape, generator=generator)
            bare.state[:] = sim.batch.state
            start = perf_counter()
            env.step(action)
            env_s += perf_counter() - start
            bare.ctrl[:] = sim.batch.ctrl
            start = perf_counter()
            bare.step(nstep=sim.num_substeps)
            bare_s += perf_counter() - start
        env_rates.append(steps * num_envs / env_s)
        bare_rates.append(steps * num_envs / bare_s)
        ratios.append(bare_s / env_s)
    return {
        "num_envs": num_envs,
        "num_threads": bare.nthread,
        "physics_steps": sim.num_substeps,
        "env_steps_per_s": median(env_rates[1:]),  # the first warms up
        "bare_steps_per_s": median(bare_rates[1:]),
        "env_to_bare_ratio": median(ratios[1:]),
    }


def _spread(state: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """The state with every command and push somewhere in its time."""
    for left_s in (state["push_in_s"], *(c["left_s"] for c in state["commands"].values())):
        left_s *= torch.rand(len(left_s), generator=generator)
    return state
