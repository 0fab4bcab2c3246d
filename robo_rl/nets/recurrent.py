"""Gated recurrent units over recorded sequences in which episodes begin and end."""

import torch
from torch import Tensor, nn

from robo_rl.nets.mlp import uniform


class BatchedGRU(nn.Module):
    """K separate gated recurrent units of one shape, computed together.

    Source: Cho et al. 2014, arXiv:1406.1078, in the form of torch.nn.GRU (the reset gate acts on
    the candidate after its product).
    """

    def __init__(self, count: int, inputs: int, hidden: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = hidden
        self.weight_x = uniform(count, inputs, 3 * hidden, fan_in=hidden, generator=generator)
        self.bias_x = uniform(count, 1, 3 * hidden, fan_in=hidden, generator=generator)
        self.weight_h = uniform(count, hidden, 3 * hidden, fan_in=hidden, generator=generator)
        self.bias_h = uniform(count, 1, 3 * hidden, fan_in=hidden, generator=generator)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Memory after one step, (K, B, H).

        Args:
            x: (B, I).
            memory: (K, B, H).
        """
        return self._step(self._inputs(x), memory)

    def unroll(self, x: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """Memory after every step, (T, K, B, H).

        Args:
            x: (T, B, I).
            memory: (K, B, H), before the first step.
            starts: (T, B) bool: an episode starts at this step, with nothing remembered.
        """
        num_steps, batch, _ = x.shape
        gates = self._inputs(x.flatten(0, 1)).view(-1, num_steps, batch, 3 * self.hidden)
        steps = []
        for t in range(num_steps):
            memory = torch.where(starts[t].unsqueeze(-1), 0.0, memory)
            memory = self._step(gates[:, t], memory)
            steps.append(memory)
        return torch.stack(steps)

    def _inputs(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias_x, x.expand(len(self.weight_x), -1, -1), self.weight_x)

    def _step(self, gates: Tensor, memory: Tensor) -> Tensor:
        reset_x, update_x, new_x = gates.chunk(3, -1)
        reset_h, update_h, new_h = torch.baddbmm(self.bias_h, memory, self.weight_h).chunk(3, -1)
        update = torch.sigmoid(update_x + update_h)
        new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
        return torch.lerp(new, memory, update)
