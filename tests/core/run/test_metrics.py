import io
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from robo_rl.api import Step
from robo_rl.metrics import Display, Meter, Writer, read

LINE: dict[str, float] = {
    "iteration": 3,
    "steps": 120,
    "time_s": 75.0,
    "steps_per_s": 12345.6,
    "simulation_s": 3.0,
    "learning_s": 1.0,
    "position_error": 0.0543,
    "broken": 2,
    "reward/reach": -0.5,
    "reward/effort": -0.0123,
    "reward/reach/distance": -0.5,
    "return/reach": -7.25,
    "return/effort": -1.5,
    "episode_length": 18.0,
    "fall": 0.25,
    "kl": 0.0123,
    "actor_learning_rate": 1e-3,
    "explained_variance/reach": 0.9,
    "explained_variance/effort": 0.8,
    "eval/position_error": 0.04,
    "eval/best_score": -0.03,
}


def test_the_meter_agrees_with_a_slow_loop(toys: ModuleType) -> None:
    torch.manual_seed(0)
    num, steps, heads = 5, 12, ("reach", "effort")
    spec = toys.PointTask().build(num_envs=num, device="cpu", seed=0).spec
    meter = Meter(spec, num, "cpu")
    returns, lengths = [[0.0, 0.0] for _ in range(num)], [0] * num
    for iteration in range(3):
        errors: list[float] = []
        rewards: list[list[float]] = []
        ended: list[tuple[list[float], int, bool]] = []
        for _ in range(steps):
            reward, error = torch.randn(num, 2), torch.rand(num)
            terminated, truncated = torch.rand(num) < 0.1, torch.rand(num) < 0.1
            none: dict[str, Tensor] = {}
            metrics = {"error": error, "broken": error > 0.9}
            step = Step(none, none, reward, torch.zeros(num, 0), terminated, truncated, metrics)
            meter.add(step)
            for i in range(num):
                errors.append(error[i].item())
                rewards.append(reward[i].tolist())
                returns[i] = [a + b.item() for a, b in zip(returns[i], reward[i], strict=True)]
                lengths[i] += 1
                if terminated[i] or truncated[i]:
                    ended.append((returns[i], lengths[i], bool(terminated[i])))
                    returns[i], lengths[i] = [0.0, 0.0], 0
        if iteration == 1:  # a meter that is saved and loaded goes on in mid-episode
            saved, meter = meter, Meter(spec, num, "cpu")
            line = saved.read({"kl": torch.tensor(0.5)})
            meter.load_state_dict(saved.state_dict())
        else:
            line = meter.read({"kl": torch.tensor(0.5)})
        assert line["error"] == pytest.approx(sum(errors) / len(errors))
        assert line["broken"] == sum(error > 0.9 for error in errors)
        assert (line["kl"], line["episodes"]) == (0.5, len(ended))
        assert line["episode_length"] == pytest.approx(sum(e[1] for e in ended) / len(ended))
        assert line["fall"] == pytest.approx(sum(e[2] for e in ended) / len(ended))
        for k, head in enumerate(heads):
            mean = sum(r[k] for r in rewards) / len(rewards)
            assert line[f"reward/{head}"] == pytest.approx(mean, abs=1e-6)
            mean = sum(e[0][k] for e in ended) / len(ended)
            assert line[f"return/{head}"] == pytest.approx(mean, abs=1e-5)


def test_lines_are_json_whatever_the_numbers(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write({"iteration": 1, "loss": math.nan, "kl": 0.5})
    writer.write({"iteration": 2, "loss": math.inf, "kl": 0.25})
    writer.close()
    assert read(tmp_path) == [
        {"iteration": 1, "loss": None, "kl": 0.5},
        {"iteration": 2, "loss": None, "kl": 0.25},
    ]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    resumed = Writer(tmp_path, iteration=1)
    resumed.write({"iteration": 2, "kl": 1.0})
    resumed.close()
    assert [line.get("kl") for line in read(tmp_path)] == [0.5, 1.0]


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write({"iteration": 1, "reward/reach": -1.5, "kl": 0.5})
    writer.close()
    module: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = module.EventAccumulator(str(tmp_path)).Reload()
    assert set(board.Tags()["scalars"]) == {"reward/reach", "run/kl", "run/iteration"}
    assert board.Scalars("run/kl")[0].value == 0.5


def shown(terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, no_color=True)
    units = {"position_error": "m"}
    with Display("point, climber, seed 0", 10, ("reach", "effort"), units, console) as display:
        display.say("run folder: runs/point")
        display.update(LINE)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()) if terminal else out.getvalue()


def test_without_a_terminal_an_iteration_is_one_plain_line() -> None:
    folder, line = shown(terminal=False).splitlines()
    assert folder == "run folder: runs/point"
    for text in (
        " 3/10, ",
        " to go | ",
        "12,346 steps/s (simulation 75%, learning 25%)",
        "reward: reach -0.500  effort -0.012",
        "task: episode length 18.00 steps",
        "position error 0.054 m",
        "kl 0.012",
        "2 simulations reset",
        "evaluation: best score -0.030  position error 0.040 m",
    ):
        assert text in line, text
    assert "\x1b" not in line


def test_a_terminal_shows_a_panel_with_a_row_a_group() -> None:
    panel = shown(terminal=True).rpartition("╭")[2]
    rows = [line for line in panel.splitlines() if "│" in line]
    (columns,) = (row for row in rows if "group" in row)
    assert columns.split()[1:-1] == ["group", "reward", "return", "explained", "variance"]
    (reach,) = (row for row in rows if "reach" in row)
    assert reach.split()[1:-1] == ["reach", "-0.500", "-7.250", "0.900"]
    for text in ("3/10", "1:15 gone", "position error 0.054 m", "simulations reset 2", "kl 0.012"):
        assert any(text in row for row in rows), text
