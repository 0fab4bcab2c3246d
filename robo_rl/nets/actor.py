"""The policy network and the policy that acts with it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robo_rl.api import EnvSpec, Memory, Obs
from robo_rl.nets.gaussian import StateFreeStd
from robo_rl.nets.mlp import MLP, Activation
from robo_rl.nets.obs_input import FrameEncoder, ObsInput
from robo_rl.nets.recurrent import BatchedGRU


class Actor(nn.Module):
    """Mean and standard deviation of the action; as a module (*obs, *memory) -> (mean, *memory).

    Normalised groups, then, where asked for, an encoder of each stacked frame and a GRU, then an
    MLP whose last layer starts small, so that the first actions are near zero whatever is seen.
    """

    def __init__(
        self,
        spec: EnvSpec,
        groups: Sequence[str],
        *,
        hidden: Sequence[int],
        activation: Activation,
        frame_features: int,
        gru: int,
        initial_std: float,
        min_std: float,
        generator: torch.Generator,
    ) -> None:
        """Args:
        frame_features: numbers that each frame of a stacked group is encoded to; 0: no encoder.
        gru: size of the memory; 0: none.
        """
        super().__init__()
        self.input = ObsInput(spec, groups)
        size = self.input.size
        self.encoder: FrameEncoder | None = None
        if frame_features:
            stacks = [spec.obs[name] for name in groups]
            self.encoder = FrameEncoder(stacks, frame_features, activation, generator=generator)
            size = self.encoder.size
        self.gru = BatchedGRU(1, size, gru, generator=generator) if gru else None
        num_actions = len(spec.action.joints)
        sizes = (gru or size, *hidden, num_actions)
        self.mlp = MLP(sizes, activation, generator=generator, last_scale=0.1)
        self.std = StateFreeStd(num_actions, initial_std, min_std)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Args:
        tensors: the groups, each (N, O) or (N, H, O), then the memory, (N, gru), if there is one.
        """
        count = len(self.input.groups)
        x = self._encoded(self.input(*tensors[:count]))
        if self.gru is None:
            return (self.mlp(x),)
        memory = self.gru(x, tensors[count].unsqueeze(0))[0]
        return self.mlp(memory), memory

    def mean(self, x: Tensor, memory: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Mean action of recorded inputs, (B, A), or (T, B, A) with a memory.

        Args:
            x: what self.input gave, (B, X), or (T, B, X) with a memory.
            memory: (1, B, gru), before the first step.
            starts: (T, B) bool, where an episode starts.
        """
        x = self._encoded(x)
        if self.gru is not None:
            assert memory is not None and starts is not None
            x = self.gru.unroll(x, memory, starts)[:, 0]
        return self.mlp(x)  # type: ignore[no-any-return]

    def _encoded(self, x: Tensor) -> Tensor:
        return x if self.encoder is None else self.encoder(x)


class ActorPolicy:
    """A policy that acts with an actor's mean, or explores around it.

    It clips nothing: the range of an action is ActionSpec's, which environments and exports apply.
    """

    def __init__(self, actor: Actor, *, device: str, seed: int) -> None:
        self.actor = actor
        self.generator = torch.Generator(device).manual_seed(seed)
        self.memory: Memory = {}
        self._device = device
        self.reset()

    @property
    def obs_groups(self) -> tuple[str, ...]:
        return self.actor.input.groups

    def act(self, obs: Obs, *, explore: bool = False) -> Tensor:
        mean = self.mean(obs)
        return self.sample(mean) if explore else mean

    @torch.no_grad()
    def mean(self, obs: Obs) -> Tensor:
        """Mean action, (N, A); remembers obs if it remembers anything."""
        inputs = [obs[name] for name in self.obs_groups]
        if self.actor.gru is None:
            mean: Tensor = self.actor(*inputs)[0]
            return mean
        mean, memory = self.actor(*inputs, self._remembered(len(inputs[0])))
        self.memory = {"gru": memory}
        return mean

    @torch.no_grad()
    def sample(self, mean: Tensor) -> Tensor:
        """An action around the mean, (N, A)."""
        noise = torch.randn(
            mean.shape, generator=self.generator, device=mean.device, dtype=mean.dtype
        )
        return mean.addcmul(noise, self.actor.std())

    def reset(self, mask: Tensor | None = None) -> None:
        if self.actor.gru is None:
            return
        if mask is None:
            self.memory = {"gru": torch.zeros(1, self.actor.gru.hidden, device=self._device)}
        else:
            memory = self._remembered(len(mask))
            self.memory = {"gru": torch.where(mask.unsqueeze(-1), 0.0, memory)}

    def forget_not_finite(self) -> None:
        """Forget where a number that is not finite would be remembered for ever."""
        if self.memory:
            self.reset(~self.memory["gru"].isfinite().all(-1))

    def graph(self) -> nn.Module:
        return self.actor

    def _remembered(self, rows: int) -> Tensor:
        """The memory, (N, gru); one row, as after a reset of all, serves any number."""
        memory = self.memory["gru"]
        if len(memory) not in (1, rows):
            raise ValueError(
                f"the policy remembers {len(memory)} environments and is asked to act in {rows}; "
                "call reset() before another set of environments"
            )
        return memory.expand(rows, -1)
