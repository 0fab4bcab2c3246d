"""Train, watch, measure and export policies for legged robots with arms.

`make`, `train`, `evaluate` and `load_policy` are the library in four names; torch and the
simulators are loaded when the first of them is used.
"""

import os
from typing import TYPE_CHECKING, Any

# Before torch is loaded: OpenMP threads that spin while they wait make a PPO update several times
# slower when anything else runs on the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from robo_rl.checkpoint import load_policy as load_policy
    from robo_rl.evaluation import evaluate as evaluate
    from robo_rl.registry import make as make
    from robo_rl.run import train as train

__version__ = "0.1.0"
__all__ = ["evaluate", "load_policy", "make", "train"]

_HOMES = {
    "evaluate": "robo_rl.evaluation",
    "load_policy": "robo_rl.checkpoint",
    "make": "robo_rl.registry",
    "train": "robo_rl.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'robo_rl' has no attribute {name!r}; it has {__all__}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
