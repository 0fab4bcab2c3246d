"""What a run measures and where it goes: metrics.jsonl, TensorBoard and the terminal.

A line is one iteration's numbers by name. "<metric>/<reward group>" belongs to a group,
"reward/<group>/<term>" to a term, "eval/<metric>" to an evaluation.
"""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import Tensor

from robo_rl.api import EnvSpec, Metrics, Step
from robo_rl.checkpoint import write

FILE = "metrics.jsonl"

CLOCKS = (
    "iteration",
    "steps",
    "time_s",
    "steps_per_s",
    "simulation_s",
    "learning_s",
    "evaluation_s",
)
_GROUPED = ("reward", "return", "value_error", "explained_variance")
_EPISODES = ("reward", "return", "episodes", "episode_length", "fall", "broken", "skipped")


class MetricsError(ValueError):
    """A metrics.jsonl that cannot be read: where, and what to do."""


class Meter:
    """Means over an iteration's steps and over the episodes that ended in it.

    Sums stay on the device; `read` waits for it once.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, device: str) -> None:
        self._heads = spec.heads
        self._returns = torch.zeros(num_envs, len(spec.heads), device=device)
        self._lengths = torch.zeros(num_envs, 1, device=device)
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None
        self._num_steps = 0

    def add(self, step: Step) -> None:
        self._names = tuple(step.metrics)
        self._returns += step.reward
        self._lengths += 1
        ended = (step.terminated | step.truncated).unsqueeze(-1)
        columns = [
            *(value.unsqueeze(-1) for value in step.metrics.values()),
            step.reward,
            torch.where(ended, self._returns, 0.0),
            torch.where(ended, self._lengths, 0.0),
            step.terminated.unsqueeze(-1),
            ended,
        ]
        sums = torch.cat([column.float() for column in columns], dim=-1).sum(0)
        self._sums = sums if self._sums is None else self._sums + sums
        self._num_steps += 1
        self._returns.masked_fill_(ended, 0.0)
        self._lengths.masked_fill_(ended, 0.0)

    def read(self, learnt: Metrics) -> dict[str, float]:
        """The iteration's line, with what the learner's update said of itself.

        Without an ended episode the line has no returns, lengths and falls.
        """
        assert self._sums is not None
        update = [value.detach().float().reshape(1) for value in learnt.values()]
        numbers = iter(torch.cat([self._sums, *update]).tolist())
        count = self._num_steps * len(self._lengths)
        line = {name: next(numbers) / count for name in self._names}
        if "broken" in line:
            line["broken"] = round(line["broken"] * count)
        line |= {f"reward/{head}": next(numbers) / count for head in self._heads}
        returns = {f"return/{head}": next(numbers) for head in self._heads}
        length, fell, episodes = (next(numbers) for _ in range(3))
        line["episodes"] = round(episodes)
        if episodes:
            line |= {name: value / episodes for name, value in returns.items()}
            line["return"] = sum(returns.values()) / episodes
            line["episode_length"] = length / episodes
            line["fall"] = fell / episodes
        self._sums, self._num_steps = None, 0
        assert not line.keys() & learnt.keys(), "the learner names its metrics otherwise"
        return line | dict(zip(learnt, numbers, strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """Of the episodes under way; between iterations there is no more."""
        return {"returns": self._returns, "lengths": self._lengths}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._returns.copy_(state["returns"])
        self._lengths.copy_(state["lengths"])


class Writer:
    """Appends lines to a run's metrics.jsonl and TensorBoard events.

    Args:
        iteration: where the run goes on from; what was written after it is dropped.
    """

    def __init__(self, folder: Path, iteration: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        kept = [line for line in read(folder) if line["iteration"] <= iteration]
        write(folder / FILE, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = open(folder / FILE, "a", encoding="utf-8")  # noqa: SIM115
        self._board = SummaryWriter(str(folder), purge_step=iteration + 1)

    def write(self, line: Mapping[str, float]) -> None:
        # JSON has no NaN: a gap in the curve; the learner names the fault.
        finite = {name: value if math.isfinite(value) else None for name, value in line.items()}
        self._file.write(json.dumps(finite) + "\n")
        self._file.flush()
        for name, value in line.items():
            tag = name if "/" in name else f"run/{name}"
            self._board.add_scalar(tag, value, int(line["iteration"]))

    def close(self) -> None:
        # On a full disk these fail as the write before did, which has said so.
        for part in (self._file, self._board):
            with contextlib.suppress(OSError):
                part.close()


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; one cut short by a crash ends them."""
    lines: list[dict[str, Any]] = []
    path = folder / FILE
    if not path.is_file():
        return lines
    texts = path.read_bytes().splitlines()
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and "iteration" in line:
            lines.append(line)
        elif number < len(texts):
            raise MetricsError(f"{path} is damaged: line {number} is {text[:60]!r}; delete it")
    return lines


class _Console(Console):
    """The terminal; where its reader has gone (robo-rl train ... | head), a run goes on unseen."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """A run on the terminal: one live panel, or a line an iteration where there is no terminal.

    Args:
        title: what is being trained.
        units: of the task's own metrics, by name.
    """

    def __init__(
        self,
        title: str,
        iterations: int,
        heads: tuple[str, ...],
        units: Mapping[str, str],
        console: Console | None = None,
    ) -> None:
        self._title, self._iterations = title, iterations
        self._heads = heads
        self._units = {name: "" if unit == "1" else unit for name, unit in units.items()}
        self._console = console or _Console()
        self._latest: dict[str, float] = {}
        self._begun: tuple[float, float] | None = None
        self._live = (
            Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A message that stays, above the panel."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, line: Mapping[str, float]) -> None:
        if self._begun is None:
            spent = sum(
                line.get(f"{part}_s", 0.0) for part in ("simulation", "learning", "evaluation")
            )
            self._begun = (line["iteration"] - 1, time.monotonic() - spent)
        broken = self._latest.get("broken", 0) + line.get("broken", 0)
        skipped = self._latest.get("skipped", 0) + line.get("skipped", 0)
        # Values that this line lacks (no episode ended, no evaluation) stay on show.
        self._latest |= {**line, "broken": broken, "skipped": skipped}
        if self._live:
            self._live.update(self._panel(), refresh=True)
        else:
            self.say(self._plain(line))

    def _panel(self) -> RenderableType:
        done = int(self._latest["iteration"])
        progress = Progress(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn(f"{_clock(self._latest['time_s'])} gone, {self._to_go()} to go"),
            expand=True,
        )
        progress.add_task("", total=self._iterations, completed=done)
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        for name, items in self._sections().items():
            rows.add_row(name, Columns(items, padding=(0, 2)))
        body = Group(progress, self._speed(self._latest), "", self._groups(), "", rows)
        return Panel(body, title=self._title, title_align="left")

    def _groups(self) -> Table:
        """A row a reward group."""
        columns = [
            c for c in _GROUPED if all(f"{c}/{head}" in self._latest for head in self._heads)
        ]
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("group", style="bold")
        for column in columns:
            table.add_column(words(column), justify="right")
        for head in self._heads:
            table.add_row(head, *(_number(self._latest[f"{c}/{head}"]) for c in columns))
        return table

    def _sections(self) -> dict[str, list[str]]:
        line = self._latest
        flat = [name for name in line if "/" not in name and name not in (*CLOCKS, *_EPISODES)]
        scores = {
            name.removeprefix("eval/"): value
            for name, value in line.items()
            if name.startswith("eval/") and name.count("/") == 1 and name != "eval/broken"
        }
        trouble = [
            f"simulations reset {line['broken']:.0f}",
            f"updates skipped {line['skipped']:.0f}",
        ]
        return {
            "task": self._values(line, [name for name in flat if name in self._units]),
            "episodes": self._values(line, ["episode_length", "fall"]),
            "learner": self._values(line, [name for name in flat if name not in self._units]),
            "evaluation": self._values(scores, scores),
            "trouble": trouble,
        }

    def _plain(self, line: Mapping[str, float]) -> str:
        width = len(str(self._iterations))
        rewards = {head: line[f"reward/{head}"] for head in self._heads}
        evaluated = {k.removeprefix("eval/"): v for k, v in line.items() if k.startswith("eval/")}
        scores = ["score", "best_score", "return", "fall", *self._units]
        sections = {
            "reward": self._values(rewards, self._heads),
            "task": self._values(line, ["episode_length", "fall", *self._units]),
            "learner": self._values(line, ["kl", "std", "actor_learning_rate"]),
            "evaluation": self._values(evaluated, scores),
            "trouble": [f"{line['broken']:.0f} simulations reset"] if line.get("broken") else [],
        }
        return " | ".join(
            [
                f"{line['iteration']:{width}.0f}/{self._iterations}, {self._to_go()} to go",
                self._speed(line),
                *(f"{name}: {'  '.join(items)}" for name, items in sections.items() if items),
            ]
        )

    def _values(self, line: Mapping[str, float], names: Iterable[str]) -> list[str]:
        """Those of the names that the line has, with their values and units."""
        units = {"episode_length": "steps", **self._units}
        return [
            f"{words(name)} {_number(line[name])} {units.get(name, '')}".rstrip()
            for name in names
            if name in line
        ]

    def _speed(self, line: Mapping[str, float]) -> str:
        simulation = line["simulation_s"] / (line["simulation_s"] + line["learning_s"])
        return (
            f"{line['steps_per_s']:7,.0f} steps/s "
            f"(simulation {simulation:.0%}, learning {1 - simulation:.0%})"
        )

    def _to_go(self) -> str:
        assert self._begun is not None
        first, begun = self._begun
        done = self._latest["iteration"]
        return _clock((time.monotonic() - begun) / (done - first) * (self._iterations - done))


def words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    """Four figures, the same width for everything of ordinary size."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        digits = 3 - min(3, max(0, math.floor(math.log10(abs(value) or 1))))
        return f"{value:.{digits}f}"
    return f"{value:.2e}"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"
