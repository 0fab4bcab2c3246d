"""Mirror images of observations and actions."""

import torch
from torch import Tensor

from robo_rl.api import EnvSpec, Mirror


class Reflection:
    """A vector's left-right mirror image, along the last dimension."""

    def __init__(self, mirror: Mirror, size: int, *, name: str, device: str) -> None:
        """Args:
        size: of the vector, which the mirror must fit.
        name: of the vector, for errors.
        """
        if not len(mirror.index) == len(mirror.sign) == size:
            raise ValueError(
                f"the mirror of {name} has {len(mirror.index)} indices and {len(mirror.sign)} "
                f"signs; {name} has {size} numbers"
            )
        self._index = torch.tensor(mirror.index, device=device)
        self._sign = torch.tensor(mirror.sign, device=device)
        probe = torch.arange(1.0, size + 1.0, device=device)
        if not torch.equal(self(self(probe)), probe):
            raise ValueError(f"the mirror of {name}, applied twice, is not the vector itself")

    def __call__(self, x: Tensor) -> Tensor:
        return x[..., self._index] * self._sign


def reflection(spec: EnvSpec, name: str, *, device: str) -> Reflection:
    """The mirror of an observation group, or of "action"."""
    if name not in spec.mirror:
        have = ", ".join(spec.mirror) or "none"
        raise ValueError(f"{spec.name} has no mirror of {name!r} (it has: {have}); symmetry=none")
    size = len(spec.action.joints) if name == "action" else spec.obs[name].size
    return Reflection(spec.mirror[name], size, name=name, device=device)
