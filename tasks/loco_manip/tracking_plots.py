"""Plots of the tracking suite, as SVG that reads on light and dark pages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from robo_rl.tasks.loco_manip.tracking import (
    CENTRE,
    GROUPS,
    LEAD_IN_S,
    Recording,
    Scenario,
    charged,
    envs_of,
)

INK = "#808080"
DESIRED = "#9a9a9a"
COLOURS = ("#2f7ed8", "#e8743b", "#19a979")
PANELS: Mapping[str, tuple[int, int]] = {
    "line_x_0.1": (0, 2),
    "line_y_0.1": (1, 2),
    "line_z_0.1": (1, 2),
    "circle_yz_0.25": (1, 2),
    "semicircle_0.25": (1, 0),
    "hold_world": (0, 2),
    "walk_0.3_0.25": (1, 2),
    "walk_0.5_0.25": (1, 2),
}
"""Scenarios whose paths are drawn, and the axes they are seen along: right and up."""
REACH_M = 0.24
"""Half the side of the square about the centre that every panel shows at least [m]."""
DRAWN = 4
"""Environments of a scenario that are drawn."""


def draw(
    own: Recording,
    baseline: Recording,
    scenarios: Sequence[Scenario],
    *,
    feet: Sequence[str],
    step_s: float,
    out: Path,
) -> list[Path]:
    """The files written: paths.svg, errors.svg and, where something walks, contacts.svg."""
    out.mkdir(parents=True, exist_ok=True)
    figures = {
        "paths": _paths(own, scenarios, step_s),
        "errors": _errors(own, baseline, scenarios, step_s),
        "contacts": _contacts(own, scenarios, feet, step_s),
    }
    files = []
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "robo_rl"}):
        for name, figure in figures.items():
            if figure is not None:
                files.append(out / f"{name}.svg")
                figure.savefig(files[-1], transparent=True, metadata={"Date": None})
    return files


@contextmanager
def _style() -> Iterator[None]:
    keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    look: dict[Any, Any] = {
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    with rc_context(look | dict.fromkeys(keys, INK)):
        yield


@_style()
def _paths(own: Recording, scenarios: Sequence[Scenario], step_s: float) -> Figure | None:
    """Paths as desired and as reached, from the end of the lead-in to a fall."""
    at = {s.name: i for i, s in enumerate(scenarios)}
    names = [name for name in PANELS if name in at]
    if not names:
        return None
    num_rows = -(-len(names) // 2)
    figure = Figure(figsize=(4.6, 2.0 * num_rows + 0.4), layout="constrained")
    panels = figure.subplots(num_rows, 2, squeeze=False).ravel()
    lead = round(LEAD_IN_S / step_s)
    for axes, name in zip(panels, names, strict=False):
        scenario = scenarios[at[name]]
        ids = envs_of([at[name]], own.fallen.shape[1] // len(scenarios))[:DRAWN]
        desired, reached = own.ee_pos_command_t[lead:, ids], own.ee_pos_t[lead:, ids]
        if scenario.in_world:
            # Seen from the point held, which moves in the task frame.
            reached = reached - desired + torch.tensor(CENTRE)
            desired = torch.tensor(CENTRE).expand_as(desired)
        reached = reached.masked_fill(own.fallen[lead:, ids, None], torch.nan)
        right, up = seen = list(PANELS[name])
        _path(axes, desired[:, 0, seen], color=DESIRED, lw=4.0, marker="o", ms=5.0, label="desired")
        for i in range(reached.shape[1]):
            label = "reached" if i == 0 else None
            _path(axes, reached[:, i, seen], color=COLOURS[0], lw=0.8, alpha=0.8, label=label)
        axes.set_title(name)
        axes.set_xlabel(f"{'xyz'[right]} [m]")
        axes.set_ylabel(f"{'xyz'[up]} [m]")
        middle = torch.tensor([CENTRE[right], CENTRE[up]])
        axes.update_datalim([(middle - REACH_M).tolist(), (middle + REACH_M).tolist()])
        axes.set_aspect("equal", adjustable="datalim")
        if right == 1:
            axes.invert_xaxis()
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2)
    return figure


def _path(axes: Axes, points: Tensor, **look: Any) -> None:
    right, up = points[::2].T.tolist()
    axes.plot(right, up, markevery=[0], solid_capstyle="round", **look)


@_style()
def _errors(
    own: Recording, baseline: Recording, scenarios: Sequence[Scenario], step_s: float
) -> Figure:
    """Median error over time of each group in a band from the 10th to the 90th percentile; after a
    fall the baseline's, as in the table."""
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    scales = {"ee_position": ("position error [cm]", 100.0)}
    scales["ee_rotation"] = ("rotation error [deg]", 180.0 / torch.pi)
    num_envs = own.fallen.shape[1] // len(scenarios)
    shares = torch.tensor([0.1, 0.5, 0.9])
    drawn = slice(1, None, 2)
    time = (step_s * torch.arange(1, len(own.fallen) + 1))[drawn].tolist()
    for axes, (metric, (title, factor)) in zip(panels, scales.items(), strict=True):
        other = baseline.metrics[metric][drawn]
        value = charged(own.metrics[metric][drawn], own.fallen[drawn], other)
        groups = [g for g in GROUPS if g != "all"]
        for group, colour in zip(groups, COLOURS, strict=True):
            numbers = [i for i, s in enumerate(scenarios) if GROUPS[group](s)]
            if not numbers:
                continue
            band = factor * value[:, envs_of(numbers, num_envs)].quantile(shares, 1)
            least, median, most = band.tolist()
            axes.fill_between(time, least, most, color=colour, alpha=0.15, lw=0)
            axes.plot(time, median, color=colour, lw=1.4, label=group)
        axes.plot(
            time,
            (factor * other.median(1).values).tolist(),
            color=INK,
            lw=1.0,
            ls=":",
            label="zero action, all",
        )
        axes.axvspan(0.0, LEAD_IN_S, color=INK, alpha=0.12, lw=0)
        axes.set_title(title)
        axes.set_yscale("log")
        axes.margins(x=0.0)
        axes.grid(color=INK, alpha=0.2, lw=0.5)
    panels[-1].set_xlabel("time [s]; shaded: lead-in, not counted")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


@_style()
def _contacts(
    own: Recording, scenarios: Sequence[Scenario], feet: Sequence[str], step_s: float
) -> Figure | None:
    """When the feet of one walking environment stood and should have stood: of the first that did
    not fall, or else the one that fell last."""
    walks = [i for i, s in enumerate(scenarios) if s.forward != 0.0 and not s.in_world]
    if not walks:
        return None
    ids = envs_of(walks, own.fallen.shape[1] // len(scenarios))
    stood = (~own.fallen[:, ids]).sum(0)
    best = int(stood.argmax())
    env, scenario = int(ids[best]), scenarios[walks[best * len(walks) // len(ids)]]
    figure = Figure(figsize=(4.6, 2.0), layout="constrained")
    axes = figure.add_subplot()
    first = round(LEAD_IN_S / step_s)
    shown = slice(first, first + round(4.0 / step_s))
    looks = (
        ("scheduled", own.foot_stance, DESIRED, 0.42),
        ("touching", own.foot_contact, COLOURS[0], 0.0),
    )
    for label, stands, colour, above in looks:
        for foot in range(len(feet)):
            spans = _spans(stands[shown, env, foot], first, step_s)
            axes.broken_barh(spans, (-foot + above - 0.38, 0.34), color=colour, lw=0,
                             label=label if foot == 0 else None)  # fmt: skip
    axes.set_yticks([-float(i) for i in range(len(feet))], list(feet))
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.0)
    fell = (
        ""
        if int(stood[best]) == len(own.fallen)
        else f", fell at {int(stood[best]) * step_s:.1f} s"
    )
    axes.set_title(f"{scenario.name}{fell}")
    axes.set_xlabel("time [s]")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2)
    return figure


def _spans(on: Tensor, first: int, step_s: float) -> list[tuple[float, float]]:
    """Start and length [s] of each stretch in which on (T,) is true; row 0 is step first."""
    edges = torch.nn.functional.pad(on.int(), (1, 1)).diff()
    starts, ends = torch.nonzero(edges == 1).flatten(), torch.nonzero(edges == -1).flatten()
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return [((first + a) * step_s, (b - a) * step_s) for a, b in pairs]
