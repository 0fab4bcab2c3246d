"""One HTML file that shows a run, or compares several: curves, scores, configurations, origins."""

import html
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from robo_rl.config import ConfigError, flatten, load_toml
from robo_rl.metrics import CLOCKS, words
from robo_rl.run import Run, task_name

_INK = "#0a0b0c"
"""Matplotlib's colour of text and axes, which becomes the page's own: light or dark."""
_COLOURS = ("#2f7ed8", "#e8743b", "#19a979", "#a05bc4", "#d64550", "#8c8c8c", "#c9a227", "#13a4b4")
_POINTS = 250
"""Of a curve; more iterations are averaged to as many."""

_UNITS = {
    "episode_length": "steps",
    "fall": "share of episodes",
    "steps_per_s": "steps/s",
    "wall_time": "min",
    "broken": "simulations reset",
}

_STYLE = """
:root { color-scheme: light dark; --line: light-dark(#ddd, #3a3a3a); --soft: light-dark(#666, #aaa);
  --card: light-dark(#fff, #1d1f21); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto; padding: 0 1rem;
  background: light-dark(#fafafa, #141516); color: light-dark(#1c1c1c, #e6e6e6); }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
.soft { color: var(--soft) }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 1rem }
figure { margin: 0; padding: .5rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px }
figure svg { width: 100%; height: auto; display: block }
figcaption { font-size: .85rem; padding: .1rem .4rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
.key i { display: inline-block; width: .9em; height: .9em; border-radius: 3px;
  margin: 0 .35em 0 1em; vertical-align: -.1em } .key i:first-child { margin-left: 0 }
pre { overflow-x: auto; font-size: .8rem; padding: .8rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px }
"""


def report(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Writes the report and returns its path.

    Runs that differ in their seed alone are one curve: their mean in a band from least to most.
    """
    groups = _grouped([_Record(Run.open(path)) for path in runs])
    tasks = sorted({group.first.task for group in groups})
    sections = [
        _scores(groups),
        *_curves(groups),
        _terms(groups),
        *(_tracking(record) for group in groups for record in group.records),
        _differences(groups),
        _origins(groups),
        _configuration(groups),
    ]
    body = "\n".join(
        f"<h2>{html.escape(title)}</h2>\n{content}" for title, content in sections if content
    )
    count = sum(len(group.records) for group in groups)
    subtitle = f"{count} runs" if count > 1 else str(groups[0].first.run.path)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(', '.join(tasks))}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{html.escape(', '.join(tasks))}</h1>"
        f'<div class="soft">{html.escape(subtitle)}</div>{_key(groups)}\n{body}\n</body></html>\n'
    )
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


class _Record:
    """What a run's folder tells, without the code of its task."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.config = load_toml(run.path / "config.toml")
        self.lines = run.metrics()
        self.evaluation = run.evaluation() or {}
        self.task = task_name(self.config, run.path / "config.toml")
        if lacking := {"name", "seed", "iterations"} - self.config.keys():
            raise ConfigError(f"{run.path / 'config.toml'} is damaged: no {', '.join(lacking)}")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that makes two runs different experiments."""
        return {k: v for k, v in flatten(self.config).items() if k not in ("seed", "name")}

    @property
    def scores(self) -> dict[str, float]:
        """Of the final evaluation, or of the last one in training."""
        if "scores" in self.evaluation:
            return dict(self.evaluation["scores"])
        scores: dict[str, float] = {}
        for line in self.lines:
            scores |= {k.removeprefix("eval/"): v for k, v in line.items() if k[:5] == "eval/"}
        return {k: v for k, v in scores.items() if k not in ("score", "best_score")}


@dataclass(frozen=True)
class _Group:
    """Runs of one experiment with different seeds."""

    label: str
    colour: str
    records: list[_Record]

    @property
    def first(self) -> _Record:
        return self.records[0]

    def curve(self, name: str) -> list[tuple[float, float, float, float]]:
        """(steps, mean, least, most) over seeds of a metric, wherever it was measured."""
        values: dict[float, list[float]] = defaultdict(list)
        for record in self.records:
            for line in record.lines:
                if line.get(name) is not None:
                    values[line["steps"]].append(line[name])
        points = [(x, fmean(y), min(y), max(y)) for x, y in sorted(values.items())]
        size = -(-len(points) // _POINTS) or 1
        chunks = [points[i : i + size] for i in range(0, len(points), size)]
        return [tuple(map(fmean, zip(*chunk, strict=True))) for chunk in chunks]  # type: ignore[misc]


def _grouped(records: list[_Record]) -> list[_Group]:
    groups: list[list[_Record]] = []
    for record in records:
        for group in groups:
            if group[0].settings == record.settings:
                group.append(record)
                break
        else:
            groups.append([record])
    differing = _differing([group[0].settings for group in groups])
    labels = [_label(group[0], differing) for group in groups]
    if len(set(labels)) < len(labels):
        labels = [group[0].run.path.name for group in groups]
    return [
        _Group(label, _COLOURS[i % len(_COLOURS)], group)
        for i, (label, group) in enumerate(zip(labels, groups, strict=True))
    ]


def _label(record: _Record, differing: list[str]) -> str:
    """What a reader would call an experiment: its name, or what sets it apart."""
    if record.config["name"] or not differing or len(differing) > 3:
        return str(record.config["name"] or record.run.path.name)
    return ", ".join(f"{k.rpartition('.')[2]} {record.settings.get(k, '-')}" for k in differing)


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = {key for each in settings for key in each}
    return sorted(k for k in keys if any(each.get(k) != settings[0].get(k) for each in settings))


def _curves(groups: list[_Group]) -> Iterable[tuple[str, str]]:
    """Sections of plots: evaluation, training, the learner, speed."""
    names = list(
        dict.fromkeys(k for g in groups for r in g.records for line in r.lines for k in line)
    )
    units = _units(groups)
    flat = [n for n in names if "/" not in n and n not in (*CLOCKS, "episodes")]
    evaluated = [n for n in names if n.startswith("eval/") and n.count("/") == 1]
    measured = [n for n in flat if f"eval/{n}" in evaluated]
    by_group: dict[str, list[str]] = defaultdict(list)
    for name in names:
        metric, _, head = name.partition("/")
        if metric != "eval" and "/" not in head and head:
            by_group[metric].append(name)
    earned = [by_group.pop(metric, []) for metric in ("reward", "return")]
    unscored = ("eval/score", "eval/best_score", "eval/broken")
    sections: dict[str, list[list[str]]] = {
        "Evaluations": [[n] for n in evaluated if n not in unscored],
        "Training": [*earned, *([n] for n in measured if n != "return")],
        "Learner": [
            *by_group.values(),
            *([n] for n in flat if n not in (*measured, "skipped")),
        ],
        "Speed": [["steps_per_s"]],
    }
    for title, plots in sections.items():
        if len(groups) > 1:  # colours are experiments then, so that a plot has one metric
            plots = [[name] for plot in plots for name in plot]
        figures = [_plot(groups, plot, units) for plot in plots if plot]
        yield title, f'<div class="plots">{"".join(figures)}</div>' if any(figures) else ""


def _plot(groups: list[_Group], names: list[str], units: Mapping[str, str]) -> str:
    """One figure: a metric of every experiment, or several metrics of one."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "robo_rl", "font.size": 9}):
        figure = Figure(figsize=(4.4, 2.5))
        axes = figure.add_axes((0.14, 0.18, 0.83, 0.78))
        drawn = False
        for group in groups:
            for i, name in enumerate(names):
                points = group.curve(name)
                if not points:
                    continue
                steps, mean, least, most = zip(*points, strict=True)
                x = [count / 1e6 for count in steps]
                colour = _COLOURS[i % len(_COLOURS)] if len(names) > 1 else group.colour
                axes.plot(x, mean, color=colour, lw=1.5, label=name.partition("/")[2],
                          marker="." if len(x) == 1 else None)  # fmt: skip
                if len(group.records) > 1:
                    axes.fill_between(x, least, most, color=colour, alpha=0.2, lw=0)
                drawn = True
        if not drawn:
            return ""
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8, labelcolor=_INK)
        axes.set_xlabel("million steps", color=_INK)
        axes.tick_params(colors=_INK, labelsize=8)
        axes.locator_params(nbins=6)
        axes.grid(color=_INK, alpha=0.12, lw=0.6)
        for side, spine in axes.spines.items():
            spine.set_color(_INK)
            spine.set_visible(side in ("left", "bottom"))
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    metric = names[0].removeprefix("eval/")
    title = words(metric if len(names) == 1 else metric.partition("/")[0])
    title = "speed" if metric == "steps_per_s" else title
    if unit := units.get(metric):
        title += f" [{unit}]"
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>{_inline(text.getvalue())}</figure>"
    )


def _scores(groups: list[_Group]) -> tuple[str, str]:
    units = _units(groups)
    names = dict.fromkeys(
        name for g in groups for r in g.records for name in r.scores if "reward/" not in name
    )
    facts: dict[str, Callable[[_Record], float | None]] = {
        "steps": lambda record: record.lines[-1]["steps"] if record.lines else None,
        "wall_time": lambda record: record.lines[-1]["time_s"] / 60 if record.lines else None,
    }
    rows = [
        [words(name), units.get(name, ""), *(_spread(map(fact, g.records)) for g in groups)]
        for name, fact in facts.items()
    ]
    chosen = {str(g.first.evaluation.get("score", "")).removeprefix("-") for g in groups}
    rows += [
        [
            words(name) + (" (score)" if name in chosen else ""),
            units.get(name, ""),
            *(_spread(record.scores.get(name) for record in g.records) for g in groups),
        ]
        for name in names
    ]
    return "Scores", _table(["", "unit", *(group.label for group in groups)], rows)


def _terms(groups: list[_Group]) -> tuple[str, str]:
    names = dict.fromkeys(
        n for g in groups for r in g.records for n in r.scores if n.startswith("reward/")
    )
    rows = [
        [
            name.removeprefix("reward/"),
            *(_spread(record.scores.get(name) for record in g.records) for g in groups),
        ]
        for name in names
    ]
    header = ["reward per step", *(group.label for group in groups)]
    return "Reward terms in the evaluation", _table(header, rows) if rows else ""


def _tracking(record: _Record) -> tuple[str, str]:
    """The tracking suite's table and plots, where a run has them."""
    path = record.run.path / "tracking" / "tracking.json"
    title = f"Tracking suite: {record.run.path.name}"
    if not path.is_file():
        return title, ""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    plots = "".join(
        f"<figure>{_inline(svg.read_text(encoding='utf-8'))}</figure>"
        for svg in sorted((record.run.path / "tracking").glob("*.svg"))
    )
    return title, _table([*map(words, columns)], cells) + f'<p><div class="plots">{plots}</div>'


def _differences(groups: list[_Group]) -> tuple[str, str]:
    settings = [group.first.settings for group in groups]
    rows = [[key, *(_cell(each.get(key)) for each in settings)] for key in _differing(settings)]
    header = ["", *(group.label for group in groups)]
    return "Differences in configuration", _table(header, rows) if rows else ""


def _origins(groups: list[_Group]) -> tuple[str, str]:
    header = ["run", "seed", "iterations", "started", "command", "commit", "machine", "versions"]
    rows = []
    for record in (record for group in groups for record in group.records):
        origin = record.run.origin()
        machine, packages = origin.get("machine", {}), origin.get("packages", {})
        commits = [
            (git["commit"] or "none")[:10] + (" with changes" if git["diff"] else "")
            for git in origin.get("git", [])
        ]
        versions = [f"{n} {packages[n]}" for n in ("robo-rl", "torch", "mujoco") if n in packages]
        done = record.lines[-1]["iteration"] if record.lines else 0
        rows.append(
            [
                str(record.run.path),
                str(record.config["seed"]),
                f"{done} of {record.config['iterations']}",
                origin.get("started", ""),
                origin.get("command", ""),
                ", ".join(commits),
                ", ".join(str(machine[key]) for key in ("cpu", "gpu") if machine.get(key))
                + f", {machine.get('cores')} cores",
                f"Python {machine.get('python')}, {', '.join(versions)}",
            ]
        )
    return "Origin", _table(header, rows)


def _configuration(groups: list[_Group]) -> tuple[str, str]:
    texts = [
        f"<details><summary>{html.escape(group.label)}</summary>"
        f"<pre>{html.escape((group.first.run.path / 'config.toml').read_text(encoding='utf-8'))}"
        "</pre></details>"
        for group in groups
    ]
    return "Configuration", "".join(texts)


def _key(groups: list[_Group]) -> str:
    """Which colour is which experiment."""
    if len(groups) == 1:
        return ""
    items = "".join(
        f'<i style="background:{g.colour}"></i>{html.escape(g.label)} ({len(g.records)})'
        for g in groups
    )
    return f'<p class="key">{items}</p>'


def _units(groups: list[_Group]) -> dict[str, str]:
    return _UNITS | {k: v for g in groups for k, v in g.first.evaluation.get("units", {}).items()}


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _spread(values: Iterable[float | None]) -> str:
    """The mean over seeds, and the range where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = _cell(fmean(known))
    return mean if len(known) == 1 else f"{mean} ({_cell(min(known))} to {_cell(max(known))})"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _inline(svg: str) -> str:
    """A drawing as an element of the page, in the page's colour."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    return svg.replace(_INK, "currentColor")
