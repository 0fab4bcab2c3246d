"""Adam with gradient clipping, whose whole state is tensors that can be saved and put back."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class Optimiser:
    """Adam over some parameters (Kingma, Ba 2015, arXiv:1412.6980).

    The learning rate is a tensor: a rule may move it without waiting for the device.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, rate: float, max_norm: float, rows: int = 1
    ) -> None:
        """Args:
        max_norm: gradients of a longer norm are scaled down to it.
        rows: K where each parameter is K networks' stacked along its first dimension, (K, ...);
            the gradient of each is then clipped by itself.
        """
        self.parameters = list(parameters)
        self.rate = torch.tensor(rate, device=self.parameters[0].device)
        self._max_norm = max_norm
        self._rows = rows
        self._adam = torch.optim.Adam(self.parameters, lr=self.rate, fused=True)
        # Adam makes its state at the first step; made now, it can be copied before any step.
        for parameter in self.parameters:
            self._adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def step(self) -> Tensor:
        """Clip, step and clear the gradients; their norms before, (rows,)."""
        gradients = [p.grad.view(self._rows, -1) for p in self.parameters if p.grad is not None]
        norm = torch.stack([g.square().sum(1) for g in gradients]).sum(0).sqrt()
        scale = (self._max_norm / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1)
        for gradient in gradients:
            gradient.mul_(scale)
        self._adam.step()
        self._adam.zero_grad()
        return norm

    def state_dict(self) -> dict[str, Tensor]:
        """The optimiser's own tensors, not copies; the parameters are their module's to save."""
        moments = {
            f"{name}/{i}": value
            for i, parameter in enumerate(self.parameters)
            for name, value in self._adam.state[parameter].items()
        }
        return {"rate": self.rate, **moments}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            mine.copy_(state[name])
