"""How the advantages of several reward groups become what PPO climbs: pure functions.

Letters: T steps, N environments, K reward groups (value heads), L limbs.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from robo_rl.api import EnvSpec

Mode = Literal["normalised_sum", "raw_sum", "joint", "mixing", "conflict_filter", "pcgrad"]

MODES: tuple[Mode, ...] = get_args(Mode)

STD_FLOOR = 1e-4
"""A group whose advantage varies less than this, in units of reward, is rounding error or noise
of its critic: it is divided by the floor and so stays small, where a group above it comes to unit
variance."""

_CONFLICT_AGREEMENT = 0.8
_CONFLICT_MIN = 1e-8


def combine(advantage: Tensor, weights: Tensor, mode: Mode, *, mix: Tensor | None = None) -> Tensor:
    """What PPO climbs, (T, N, M): M = 1, but L in mode mixing and K in mode pcgrad.

    Whatever the mode, the size of a policy step depends neither on K nor on the scale of the
    weights, and with K = 1 the answer is the normalised advantage of ordinary PPO.

    - normalised_sum: each group to zero mean and unit variance over the whole batch, then the
      weighted sum (Vijayan et al. 2025, arXiv:2507.08656). Differs: divided by sqrt(sum w^2).
    - raw_sum: the weighted sum, then normalised: one critic's advantage, learnt in parts.
    - joint: one mean and variance for all groups, then the weighted sum, which keeps the groups'
      relative scale.
    - mixing: as joint, but one column a limb, each with its own blend of the groups (Fu et al.
      2022, arXiv:2210.10044). Differs: each column divided by the norm of its coefficients.
    - conflict_filter: as normalised_sum, but a step on which the groups disagree in sign and
      nearly cancel counts for nothing (GD2PO, arXiv:2606.16771, its SNR rule). Differs: the rest
      is never scaled up.
    - pcgrad: one column a group; their policy gradients are to be projected by `pcgrad`.

    Args:
        advantage: (T, N, K).
        weights: (K,) >= 0, one of them > 0.
        mix: (L, K), for mode mixing: see `limb_mix`.
    """
    match mode:
        case "normalised_sum":
            return _blend(_normalised(advantage), weights.unsqueeze(0))
        case "raw_sum":
            return _normalised((advantage * weights).sum(-1, keepdim=True))
        case "joint":
            return _blend(_jointly_normalised(advantage), weights.unsqueeze(0))
        case "mixing":
            if mix is None:
                raise ValueError("mode 'mixing' needs mix, the groups' share in each limb (L, K)")
            return _blend(_jointly_normalised(advantage), weights * mix)
        case "conflict_filter":
            return _without_conflicts(_normalised(advantage), weights)
        case "pcgrad":
            return _normalised(advantage) * _unit(weights)


def limb_mix(limbs: Sequence[str], heads: Sequence[str], others: float) -> Tensor:
    """Share of each group in the advantage of each limb, (L, K).

    A limb takes its own group whole, and so it takes a group that owns no limb.

    Args:
        limbs: the group that owns each limb.
        others: share of the groups of other limbs, ramped from 0 to 1 while training.
    """
    owned = set(limbs)
    return torch.tensor(
        [[1.0 if head == limb or head not in owned else others for head in heads] for limb in limbs]
    )


def limbs(spec: EnvSpec) -> tuple[str, ...]:
    """The groups that own actions, L of them, in the order of the heads."""
    if len(spec.heads) == 1:
        return spec.heads
    if not spec.action.heads:
        raise ValueError(
            f"mode 'mixing' needs to know whose each action of {spec.name} is, and its "
            "ActionSpec.heads is empty; take another mode"
        )
    return tuple(head for head in spec.heads if head in spec.action.heads)


def limb_of_action(spec: EnvSpec, limbs: Sequence[str]) -> Tensor:
    """(A, L), 1 where the limb owns the action; one limb owns all."""
    if len(limbs) == 1:
        return torch.ones(len(spec.action.joints), 1)
    return torch.tensor([[float(owner == limb) for limb in limbs] for owner in spec.action.heads])


def pcgrad(gradients: Tensor, order: Tensor) -> Tensor:
    """Sum of the groups' gradients without what opposes another group's, (P,).

    Args:
        gradients: (K, P), each group's gradient flattened.
        order: (K,) a permutation, in which each gradient meets the others.

    Source: Yu et al. 2020, arXiv:2001.06782, algorithm 1. Differs: one order for all groups.
    """
    original = gradients[order]
    projected = original.clone()
    norms = original.square().sum(-1).clamp(min=torch.finfo(gradients.dtype).tiny)
    for i in range(len(projected)):
        for j in range(len(original)):
            if i != j:
                opposed = (projected[i] @ original[j]).clamp(max=0.0)
                projected[i] -= opposed / norms[j] * original[j]
    return projected.sum(0)


def _normalised(advantage: Tensor) -> Tensor:
    """Each column to zero mean and unit variance over the batch, (T, N, K)."""
    std, mean = torch.std_mean(advantage, dim=(0, 1))
    return (advantage - mean) / std.clamp(min=STD_FLOOR)


def _jointly_normalised(advantage: Tensor) -> Tensor:
    std, mean = torch.std_mean(advantage)
    return (advantage - mean) / std.clamp(min=STD_FLOOR)


def _blend(advantage: Tensor, coefficients: Tensor) -> Tensor:
    """Weighted sums of the columns, (T, N, K) and (M, K) -> (T, N, M), of unit variance where the
    columns are independent and have it."""
    return advantage @ _unit(coefficients).T


def _unit(coefficients: Tensor) -> Tensor:
    """Each row scaled to length one."""
    return torch.nn.functional.normalize(coefficients, dim=-1)


def _without_conflicts(advantage: Tensor, weights: Tensor) -> Tensor:
    parts = advantage * _unit(weights)
    total, size = parts.sum(-1), parts.abs().sum(-1)
    disagree = (parts > _CONFLICT_MIN).any(-1) & (parts < -_CONFLICT_MIN).any(-1)
    kept = ~(disagree & (total.abs() < _CONFLICT_AGREEMENT * size))
    count = kept.sum().clamp(min=2)
    mean = (total * kept).sum() / count
    centred = (total - mean) * kept
    std = (centred.square().sum() / (count - 1)).sqrt()
    return (centred / std.clamp(min=1.0)).unsqueeze(-1)
