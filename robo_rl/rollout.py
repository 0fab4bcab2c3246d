"""What T steps of N environments gave, written in place as it comes."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from robo_rl.api import EnvSpec, Obs, Step

_NAMED_ENVS = 5


class Rollout:
    """T steps of N environments; every tensor is (T, N, ...)."""

    def __init__(
        self,
        spec: EnvSpec,
        num_steps: int,
        num_envs: int,
        *,
        groups: Sequence[str],
        final_groups: Sequence[str],
        device: str,
    ) -> None:
        """Args:
        groups, final_groups: the observation groups whose obs and whose final_obs are kept.
        """

        def room(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(num_steps, num_envs, *size, dtype=dtype, device=device)

        def frames(group: str) -> Tensor:
            stack, size = spec.obs[group].history, spec.obs[group].size
            return room(stack, size) if stack > 1 else room(size)

        self.spec = spec
        self.obs = {name: frames(name) for name in groups}
        self.final_obs = {name: frames(name) for name in final_groups}
        self.action = room(len(spec.action.joints))
        self.mean = room(len(spec.action.joints))
        self.reward = room(len(spec.heads))
        self.terminated = room(dtype=torch.bool)
        self.truncated = room(dtype=torch.bool)
        self._num_steps = num_steps
        self._filled = 0
        self._acted = False

    @property
    def empty(self) -> bool:
        return self._filled == 0 and not self._acted

    @property
    def full(self) -> bool:
        return self._filled == self._num_steps

    @property
    def ended(self) -> Tensor:
        """(T, N) bool, the last step of an episode."""
        return self.terminated | self.truncated

    @property
    def starts(self) -> Tensor:
        """(T, N) bool, the first step of an episode that started within the rollout."""
        return torch.cat([torch.zeros_like(self.terminated[:1]), self.ended[:-1]])

    def add_action(self, obs: Obs, action: Tensor, mean: Tensor) -> None:
        """The observation acted on, the action and the policy's mean, (N, ...)."""
        if self.full or self._acted:
            raise RuntimeError("act, observe and act again; after num_steps of them, update")
        t = self._filled
        for name, kept in self.obs.items():
            kept[t].copy_(obs[name])
        self.action[t].copy_(action)
        self.mean[t].copy_(mean)
        self._acted = True

    def add_step(self, step: Step) -> None:
        """What the action led to."""
        if not self._acted:
            raise RuntimeError("observe follows act")
        t = self._filled
        for name, kept in self.final_obs.items():
            kept[t].copy_(step.final_obs[name])
        self.reward[t].copy_(step.reward)
        self.terminated[t].copy_(step.terminated)
        self.truncated[t].copy_(step.truncated)
        self._acted = False
        self._filled += 1

    def clear(self) -> None:
        """Begin again; the tensors stay and are overwritten."""
        self._filled = 0
        self._acted = False

    def fault(self) -> str:
        """What is not finite and in which environments; "" if everything is.

        The usual answer takes one pass and one wait for the device.

        Raises:
            RuntimeError: steps are missing, so that there is nothing to learn from yet.
        """
        if not self.full:
            raise RuntimeError(
                f"update after {self._filled} of {self._num_steps} steps; act and observe "
                "num_steps times first"
            )
        tensors = (*self.obs.values(), *self.final_obs.values(), self.reward)
        if bool(torch.stack([x.sum() for x in tensors]).sum().isfinite()):
            return ""
        faults = [
            self._fault(f"{when} {group}/{term}", x[..., columns])
            for when, kept in (("observation", self.obs), ("final observation", self.final_obs))
            for group, x in kept.items()
            for term, columns in _columns(self.spec, group)
        ]
        faults += [
            self._fault(f"reward {head}", self.reward[..., k])
            for k, head in enumerate(self.spec.heads)
        ]
        return "; ".join(fault for fault in faults if fault)

    def _fault(self, what: str, x: Tensor) -> str:
        bad = (~x.isfinite()).reshape(*x.shape[:2], -1).any(-1).any(0).nonzero().flatten().tolist()
        return f"{what} in {_envs(bad)}" if bad else ""


def minibatches(count: int, num_batches: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Rows of each minibatch: together a permutation of range(count), sizes equal to within one.

    A new permutation each call, so each epoch: with one for all, a sample would always meet the
    same others.
    """
    order = torch.randperm(count, generator=generator, device=generator.device)
    yield from order.tensor_split(num_batches)


def _columns(spec: EnvSpec, group: str) -> Iterator[tuple[str, slice]]:
    """Each term's name and its columns in the group."""
    start = 0
    for term in spec.obs[group].terms:
        yield term.name, slice(start, start + term.size)
        start += term.size


def _envs(ids: Sequence[int]) -> str:
    named = ", ".join(str(i) for i in ids[:_NAMED_ENVS])
    rest = len(ids) - _NAMED_ENVS
    return f"environments {named} and {rest} more" if rest > 0 else f"environments {named}"
