"""What a term is: a frozen dataclass of its parameters that is called with a view.

A task names its terms; the same names are the keys of its TOML and of the command line.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from robo_rl.tasks.terms.view import View

Signs = tuple[float, ...] | Literal["joints", "feet"]
"""How a quantity's mirror image is made: by the sign of each component, or by exchanging left and
right joints (with their own signs) or feet (blocks of one number a foot)."""

POLAR: Signs = (1.0, -1.0, 1.0)
"""Of a position, velocity or force: y changes its sign."""
AXIAL: Signs = (-1.0, 1.0, -1.0)
"""Of an angular velocity or rotation vector."""


@dataclass(frozen=True, kw_only=True)
class Term(ABC):
    """(N,) of a view of N environments."""

    unit: ClassVar[str] = ""

    @abstractmethod
    def __call__(self, view: View) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Reward(Term):
    """A rate of reward; a step earns weight * step_s times it."""

    weight: float
    """Per second and unit of the term; 0 leaves the term out."""


@dataclass(frozen=True, kw_only=True)
class Observation(ABC):
    """(N, D) of a view; what is observed is clip(scale * (quantity + noise))."""

    unit: ClassVar[str]
    frame: ClassVar[str] = ""
    signs: ClassVar[Signs]
    measured: ClassVar[bool] = True

    scale: float = 1.0
    """Factor on the quantity."""
    noise: float = 0.0
    """Half-width of the uniform noise added in training, in the term's unit."""
    clip: float | None = None
    """Bound on the scaled value's size; none without a bound."""

    def __post_init__(self) -> None:
        if not self.noise >= 0.0:
            raise ValueError(f"noise is {self.noise}; it is a width, at least 0")
        if self.clip is not None and not self.clip > 0.0:
            raise ValueError(f"clip is {self.clip}; it must be above 0, or none")

    @abstractmethod
    def __call__(self, view: View) -> Tensor: ...
