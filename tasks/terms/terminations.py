"""What ends an episode as a failure, each (N,) bool. The clock is not among them."""

from dataclasses import dataclass

from torch import Tensor

from robo_rl.tasks.terms.term import Term
from robo_rl.tasks.terms.view import View


@dataclass(frozen=True, kw_only=True)
class Tilted(Term):
    """The base leans more than it may."""

    sine: float = 0.9
    """Sine of the angle between the base's vertical and gravity, or an angle beyond 90 degrees."""

    def __call__(self, view: View) -> Tensor:
        lean = view.gravity_b[:, :2].square().sum(-1) > self.sine**2
        return lean | (view.gravity_b[:, 2] > 0.0)


@dataclass(frozen=True, kw_only=True)
class Low(Term):
    """The base is nearer to the ground than it may be."""

    share: float = 0.5
    """Of the base's height in the default pose, in [0, 1]."""

    def __call__(self, view: View) -> Tensor:
        return view.state.base_pos_w[:, 2] < self.share * view.layout.base_height
