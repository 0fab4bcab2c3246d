"""Advantages and returns of recorded steps: pure functions."""

from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: Tensor,
    lam: Tensor | float,
) -> Tensor:
    """Advantage of every step for every value head, (T, N, K).

    A truncated step bootstraps from next_value, a terminated one from zero; neither lets the
    advantage of the next episode in. The value target of the same estimator is the advantage plus
    value; a critic may take it with a lam of its own (VC-PPO, arXiv:2503.01491).

    Args:
        reward: (T, N, K), one column per head.
        value: (T, N, K), of the observation acted on.
        next_value: (T, N, K), of the observation that followed, before any reset; finite
            everywhere, though it counts for nothing where the step is terminated.
        terminated, truncated: (T, N) bool.
        gamma: (K,), the discount of each head per control step, in [0, 1).
        lam: (K,) or one for all, in [0, 1]: 0 is the one-step error, 1 the whole return.

    Source: Schulman et al. 2016, arXiv:1506.02438. Differs: truncation, which the paper has none
    of, is the partial-episode bootstrapping of Pardo et al. 2018, arXiv:1712.00378.
    """
    bootstraps = (~terminated).unsqueeze(-1)
    goes_on = (~(terminated | truncated)).unsqueeze(-1)
    advantage = reward + gamma * next_value * bootstraps - value
    decay = gamma * lam * goes_on
    for t in reversed(range(len(advantage) - 1)):
        advantage[t].addcmul_(decay[t], advantage[t + 1])
    return advantage
