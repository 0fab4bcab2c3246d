"""What the updates of on-policy learners share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Self

import torch
from torch import Tensor, nn

from robo_rl.api import Metrics
from robo_rl.config import did_you_mean
from robo_rl.nets.optimiser import Optimiser


@dataclass(frozen=True)
class Samples:
    """Fields of equal leading dimensions: (B, ...), (B, 2, ...) where each sample is followed by
    its mirror image, or (T, N, ...) of a recurrent network."""

    x: Tensor
    """What the network reads, normalised."""
    memory: Tensor | None
    """(K, N, gru), before the first step, of a recurrent network."""
    starts: Tensor | None
    """(T, N) bool, where an episode starts, likewise."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The samples with every field changed."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: change(x) for k, x in parts.items() if x is not None})

    def flat(self) -> Self:
        """(T, N, ...) as (T * N, ...), where steps count one by one; sequences stay."""
        return self if self.memory is not None else self.each(lambda x: x.flatten(0, 1))

    def take(self, rows: Tensor) -> Self:
        """The samples in those rows; whole sequences, of those environments, if recurrent."""
        dim = 0 if self.memory is None else 1
        return self.each(lambda x: x.index_select(dim, rows))


class Snapshot:
    """What some networks and optimisers were, to go back to when an update fails."""

    def __init__(self, *parts: nn.Module | Optimiser) -> None:
        self._now = [x for part in parts for x in part.state_dict().values()]
        self._then = [x.clone() for x in self._now]

    def restore(self) -> None:
        for now, then in zip(self._now, self._then, strict=True):
            now.copy_(then)


def not_finite(metrics: Metrics) -> str:
    """Which are not finite; "" if none. Waits for the device once."""
    finite = torch.stack(list(metrics.values())).isfinite().tolist()
    bad = [name for name, good in zip(metrics, finite, strict=True) if not good]
    return f"while learning: {', '.join(bad)}" if bad else ""


def sample_count(num_steps: int, num_envs: int, num_minibatches: int, gru: int) -> int:
    """How many samples a rollout has: steps, or with a memory whole sequences."""
    count, what = (num_envs, "environments") if gru else (num_envs * num_steps, "steps")
    if num_envs * num_steps < 2:
        raise ValueError("one step of one environment says nothing; raise num_steps or num_envs")
    if count < num_minibatches:
        raise ValueError(
            f"{count} {what} in a rollout cannot fill num_minibatches={num_minibatches}; lower "
            "it or raise num_envs"
        )
    return count


def finite(action: Tensor) -> Tensor:
    """The action (N, A), 0 where it is no number: what caused it is in the rollout, and for the
    update to report; an environment would refuse the action before."""
    return torch.where(action.isfinite(), action, 0.0)


def on_device(memory: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: x.to(device) for name, x in memory.items()}


def set_generator(generator: torch.Generator, state: Tensor) -> None:
    """Go on with the random numbers of a checkpoint, if it is from the same kind of device.

    A CPU's generator and a GPU's cannot stand for one another; a policy trained on one must load
    on the other.
    """
    if state.shape == generator.get_state().shape:
        generator.set_state(state.cpu())


def check(name: str, value: object, good: Callable[[float], bool], accepted: str) -> None:
    """Raise where a number, or one in a mapping or tuple, is not accepted; None always is."""
    if isinstance(value, Mapping):
        for key, number in value.items():
            check(f"{name}[{key!r}]", number, good, accepted)
    elif isinstance(value, tuple):
        for number in value:
            check(name, number, good, accepted)
    elif isinstance(value, int | float) and not (isfinite(value) and good(value)):
        raise ValueError(f"{name} is {value}; it must be {accepted}")


def per_head(
    default: float, overrides: Mapping[str, float], heads: Sequence[str], name: str
) -> Tensor:
    """(K,), the default where a head is not overridden.

    Args:
        name: of the overrides, for errors.
    """
    for head in overrides:
        if head not in heads:
            raise ValueError(
                f"{name} names {head!r}, which is no reward group; there are "
                f"{', '.join(heads)}{did_you_mean(head, heads)}"
            )
    return torch.tensor([overrides.get(head, default) for head in heads])
