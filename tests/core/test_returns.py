import pytest
import torch
from torch import Tensor

from robo_rl.returns import gae


def slow_gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: list[float],
    lam: list[float],
) -> Tensor:
    """The sum in the definition, term by term."""
    advantage = torch.zeros_like(reward)
    num_steps, num_envs, num_heads = reward.shape
    for t in range(num_steps):
        for n in range(num_envs):
            for k in range(num_heads):
                weight = 1.0
                for s in range(t, num_steps):
                    follows = 0.0 if terminated[s, n] else gamma[k] * next_value[s, n, k]
                    advantage[t, n, k] += weight * (reward[s, n, k] + follows - value[s, n, k])
                    weight *= gamma[k] * lam[k]
                    if terminated[s, n] or truncated[s, n]:
                        break
    return advantage


def test_gae_is_the_sum_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value, next_value = torch.randn(3, 7, 5, 3, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 7, 5, generator=generator) < 0.2
    gamma, lam = [0.99, 0.9, 0.0], [0.95, 0.0, 1.0]
    want = slow_gae(reward, value, next_value, terminated, truncated, gamma, lam)
    got = gae(
        reward,
        value,
        next_value,
        terminated,
        truncated,
        gamma=torch.tensor(gamma, dtype=torch.float64),
        lam=torch.tensor(lam, dtype=torch.float64),
    )
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 0.99])
def test_with_lambda_one_and_no_value_it_is_the_discounted_return(gamma: float) -> None:
    ones, no_end = torch.ones(20, 1, 1), torch.zeros(20, 1, dtype=torch.bool)
    got = gae(ones, 0 * ones, 0 * ones, no_end, no_end, gamma=torch.tensor([gamma]), lam=1.0)
    want = [(1 - gamma ** (20 - t)) / (1 - gamma) for t in range(20)]
    torch.testing.assert_close(got.flatten(), torch.tensor(want))


def test_truncation_bootstraps_and_does_not_leak() -> None:
    end = torch.tensor([[True], [False]])
    one, no_end = torch.ones(2, 1, 1), torch.zeros_like(end)
    got = gae(one, 0 * one, 10 * one, no_end, end, gamma=torch.tensor([0.5]), lam=1.0)
    assert got[0].item() == 1 + 0.5 * 10  # nothing of step 1, which is another episode


def test_termination_ends_without_value() -> None:
    end = torch.tensor([[True], [False]])
    one, no_end = torch.ones(2, 1, 1), torch.zeros_like(end)
    got = gae(one, 0 * one, 10 * one, end, no_end, gamma=torch.tensor([0.5]), lam=1.0)
    assert got.flatten().tolist() == [1.0, 6.0]


def test_the_inputs_are_left_alone() -> None:
    x = torch.ones(3, 2, 1)
    end = torch.zeros(3, 2, dtype=torch.bool)
    gae(x, x, x, end, end, gamma=torch.tensor([0.9]), lam=0.9)
    assert torch.equal(x, torch.ones(3, 2, 1))
