"""The toy task "point" and the toy learner "climber", known by name in every test here."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from robo_rl import registry
from robo_rl.run import Run, train

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Toys are too small to share between threads."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(registry, "TASKS", dict(registry.TASKS))
    monkeypatch.setattr(registry, "LEARNERS", dict(registry.LEARNERS))
    module = import_module("toys")
    module.register()
    return module


@pytest.fixture
def run_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Trains the toys into tmp_path; without a report, whose drawings take longer than all else."""
    monkeypatch.setattr("robo_rl.report.report", lambda runs, out: out)

    def run(**overrides: Any) -> Run:
        return train("point", **{"algorithm": "climber", "out": tmp_path, **overrides})

    return run
