"""How good a policy is: one whole episode in every environment, the same ones for every policy."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from robo_rl.api import Env, Policy
from robo_rl.config import did_you_mean

DEFAULT_STEPS = 1000
"""Steps of an evaluation where neither the caller nor the environment sets a length."""


@torch.no_grad()
def evaluate(
    policy: Policy, env: Env, *, seed: int = 0, steps: int | None = None
) -> dict[str, float]:
    """Scores by name, of each environment's first episode from a reset with this seed.

    Every metric of the environment is its mean over all steps lived; "return/<head>" and "return"
    (their sum) are means over episodes, "episode_length" too [steps]; "fall" is the share of
    episodes that terminated; "broken" how many times the simulation blew up.

    The policy does not explore and remembers afterwards what it did before; torch's global
    generator is left as it was.

    Args:
        steps: the longest episode; by default the environment's own.
    """
    if steps is None:
        steps = env.spec.max_episode_steps or DEFAULT_STEPS
    if steps < 1:
        raise ValueError(f"steps is {steps}; an evaluation has at least 1")
    if lacking := [name for name in policy.obs_groups if name not in env.spec.obs]:
        raise ValueError(
            f"the policy reads {', '.join(lacking)}, but {env.spec.name!r} has only "
            f"{', '.join(env.spec.obs)}; was it trained in another task?"
        )
    with _undisturbed(policy, seed):
        policy.reset()
        obs = env.reset(seed=seed)
        alive = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        returns = torch.zeros(env.num_envs, len(env.spec.heads), device=env.device)
        fell, length = torch.zeros_like(alive), torch.zeros_like(alive, dtype=torch.float32)
        sums: Tensor | None = None
        names: tuple[str, ...] = ()
        for t in range(steps):
            # Now and then only: looking waits for the device.
            if t % 32 == 0 and not alive.any():
                break
            step = env.step(policy.act(obs))
            names = tuple(step.metrics)
            values = torch.stack([torch.zeros_like(length), *step.metrics.values()])
            lived = torch.where(alive, values, 0.0).sum(-1)
            sums = lived if sums is None else sums + lived
            returns += torch.where(alive.unsqueeze(-1), step.reward, 0.0)
            length += alive
            fell |= alive & step.terminated
            ended = step.terminated | step.truncated
            alive &= ~ended
            policy.reset(ended)
            obs = step.obs
    assert sums is not None
    scores = dict(zip(names, (sums[1:] / length.sum()).tolist(), strict=True))
    if "broken" in scores:
        scores["broken"] = round(scores["broken"] * length.sum().item())
    heads = returns.mean(0).tolist()
    scores |= {f"return/{h}": value for h, value in zip(env.spec.heads, heads, strict=True)}
    return scores | {
        "return": sum(heads),
        "episode_length": length.mean().item(),
        "fall": fell.float().mean().item(),
    }


def score(name: str, scores: Mapping[str, float]) -> float:
    """The number to make larger: a score by its name, negated where a "-" leads it."""
    metric = name.removeprefix("-")
    if metric not in scores:
        known = ", ".join(key for key in scores if not key.startswith("reward/"))
        raise ValueError(
            f"the task's score is {name!r}, but an evaluation gives only {known}"
            f"{did_you_mean(metric, scores)}"
        )
    return -scores[metric] if name.startswith("-") else scores[metric]


@contextmanager
def _undisturbed(policy: Policy, seed: int) -> Iterator[None]:
    """What an evaluation changes, put back: the policy's memory, torch's generator and threads."""
    memory = {key: value.clone() for key, value in policy.memory.items()}
    num_threads = torch.get_num_threads()
    # So few rows are acted on in less time than it takes to wake a second thread.
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(num_threads)
        policy.memory = memory
