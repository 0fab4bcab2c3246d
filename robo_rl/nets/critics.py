"""Value networks, one for each reward group."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robo_rl.api import EnvSpec, Obs
from robo_rl.nets.mlp import Activation, BatchedMLP
from robo_rl.nets.normaliser import Normaliser
from robo_rl.nets.obs_input import ObsInput
from robo_rl.nets.recurrent import BatchedGRU

_CHUNK = 8192


class Critics(nn.Module):
    """Values of states, (..., K): K separate networks that share nothing but what they read.

    Each network gives its value in units of the spread of the returns seen so far, from their
    mean, so that a group of large rewards is learnt as fast as one of small ones. Source: van
    Hasselt et al. 2016, arXiv:1602.07714. Differs: values move with the statistics, which the
    paper's output layer undoes; at first, when they move most, that brings them nearer.
    """

    def __init__(
        self,
        spec: EnvSpec,
        groups: Sequence[str],
        *,
        hidden: Sequence[int],
        activation: Activation,
        gru: int,
        generator: torch.Generator,
    ) -> None:
        """Args:
        gru: size of each network's memory; 0: none.
        """
        super().__init__()
        self.heads = spec.heads
        self.input = ObsInput(spec, groups)
        count, size = len(spec.heads), self.input.size
        self.gru = BatchedGRU(count, size, gru, generator=generator) if gru else None
        self.mlp = BatchedMLP(count, (gru or size, *hidden, 1), activation, generator=generator)
        self.returns = Normaliser(count, std_floor=1e-4)

    def forward(self, x: Tensor, memory: Tensor | None, starts: Tensor | None) -> Tensor:
        """Values of recorded inputs, (B, K), or (T, B, K) with a memory.

        Args:
            x: what self.input gave, (B, X), or (T, B, X) with a memory.
            memory: (K, B, gru), before the first step.
            starts: (T, B) bool, where an episode starts.
        """
        if self.gru is None:
            return self._judged(x)
        assert memory is not None and starts is not None
        return self._recalled(self.gru.unroll(x, memory, starts))

    @torch.no_grad()
    def of_rollout(
        self,
        x: Tensor,
        final_obs: Obs,
        ended: Tensor,
        memory: Tensor | None,
        starts: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values of each step's observation and of the one that followed, both (T, N, K), and the
        memory after the last.

        What followed is the next step's observation, whose value is not computed again, but where
        an episode ended and at the end of the rollout.

        Args:
            x: (T, N, X), what self.input gave of the observations acted on.
            final_obs: each group (T, N, ...), what followed before any reset.
            ended: (T, N) bool.
            memory: (K, N, gru), before the first step, of a recurrent critic.
            starts: (T, N) bool, where an episode starts.
        """
        ended = ended.clone()
        ended[-1] = True
        step, env = ended.nonzero(as_tuple=True)
        final_x = self.input.of({name: final_obs[name][step, env] for name in self.input.groups})
        if self.gru is None:
            value = self._judged(x)
            last = self._judged(final_x)
        else:
            assert memory is not None
            steps = self.gru.unroll(x, memory, starts)
            value = self._recalled(steps)
            after = self.gru(final_x, steps[step, :, env].transpose(0, 1))
            last = self._recalled(after.unsqueeze(0))[0]
            memory = steps[-1]
        next_value = torch.cat([value[1:], torch.empty_like(value[:1])])
        next_value[step, env] = last
        return value, next_value, memory

    def forgotten(self, num_envs: int) -> Tensor | None:
        """Memory of a recurrent critic at the start of an episode, (K, N, gru)."""
        if self.gru is None:
            return None
        size = (len(self.heads), num_envs, self.gru.hidden)
        return torch.zeros(size, device=self.gru.bias_x.device)

    def value(self, obs: Obs, action: Tensor | None = None) -> Tensor:
        """Values of states, (*B, K); a recurrent critic's as at the start of an episode."""
        x = self.input.of(obs)
        if self.gru is None:
            return self._judged(x)
        flat = x.reshape(1, -1, x.shape[-1])
        starts = torch.ones(flat.shape[:2], dtype=torch.bool, device=x.device)
        memory = self.forgotten(flat.shape[1])
        return self(flat, memory, starts).view(*x.shape[:-1], -1)  # type: ignore[no-any-return]

    def ensemble(self, obs: Obs, action: Tensor | None = None) -> Tensor:
        return self.value(obs, action).unsqueeze(0)

    def _judged(self, x: Tensor) -> Tensor:
        """(..., X) -> (..., K), in pieces, since what a whole rollout takes is large."""
        flat = x.reshape(-1, x.shape[-1])
        values = torch.cat([self.mlp(part) for part in torch.split(flat, _CHUNK)], dim=1)
        return self.returns.undo(values.squeeze(-1).T).reshape(*x.shape[:-1], -1)

    def _recalled(self, memory: Tensor) -> Tensor:
        """(T, K, B, gru) -> (T, B, K)."""
        flat = memory.transpose(0, 1).flatten(1, 2)
        values = self.returns.undo(self.mlp(flat).squeeze(-1).T)
        return values.reshape(len(memory), -1, len(self.heads))
