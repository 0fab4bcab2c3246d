"""Every leaf of a configuration tree is a flag with its documentation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from robo_rl import flags
from robo_rl.config import override


@dataclass(frozen=True, kw_only=True)
class Term:
    """A reward term."""

    weight: float = 1.0
    """Per second,
    whatever that is."""


@dataclass(frozen=True, kw_only=True)
class Track(Term):
    """Follow a velocity [m/s]."""

    std: float | None = 0.5
    """Width [m/s]."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task."""

    rewards: Mapping[str, Mapping[str, Term]] = field(
        default_factory=lambda: {"legs": {"track_vel": Track(), "alive": Term(weight=0.1)}}
    )
    push: tuple[float, float] = (-0.5, 0.5)
    """Range [m/s]."""
    history: Mapping[str, int] = field(default_factory=dict[str, int])
    """Steps by group."""
    mode: Literal["flat", "rough"] = "flat"
    noisy: bool = True
    made: object = field(default_factory=object, metadata={"toml": False})


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Do it."""

    out: str = "runs"
    """Where."""


def parse(*argv: str) -> tuple[Arguments, dict[str, Any]]:
    given: tuple[Arguments, dict[str, Any]] = flags.parse(
        Arguments, {"": Term(), "task": Task()}, argv, prog="do"
    )
    return given


def test_flags_become_the_changes_of_a_tree() -> None:
    arguments, changes = parse(
        *("--out", "here", "--weight", "2", "--task.push", "-1", "1.5", "--task.no-noisy"),
        *("--task.rewards.legs.track-vel.weight", "-3e-2", "--task.history", "actor", "4"),
        *("--task.rewards.legs.track_vel.std", "None", "--task.mode=rough"),
    )
    assert arguments.out == "here"
    assert changes == {
        "weight": 2.0,
        "task": {
            "rewards": {"legs": {"track_vel": {"weight": -0.03, "std": None}}},
            "push": (-1.0, 1.5),
            "history": {"actor": 4},
            "mode": "rough",
            "noisy": False,
        },
    }
    task = override(Task(), changes["task"])
    assert task.rewards["legs"] == {
        "track_vel": Track(weight=-0.03, std=None),
        "alive": Term(weight=0.1),
    }


def test_what_is_not_said_does_not_change() -> None:
    assert parse()[1] == {}
    assert parse("--task.push", "-0.5", "0.5")[1] == {}


def test_help_shows_units_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--task.push FLOAT FLOAT Range [m/s]. (default: -0.5 0.5)" in shown
    assert "--task.rewards.legs.track-vel.weight FLOAT Per second, whatever that is." in shown
    assert "Follow a velocity [m/s]." in shown
    assert "made" not in shown


def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--task.rewards.legs.trak-vel.weight", "1")
    assert stop.value.code == 2
    assert "--task.rewards.legs.track-vel.weight" in capsys.readouterr().err


def test_a_field_that_is_documented_in_its_base_keeps_the_text() -> None:
    assert flags.documentation(Track) == {
        "weight": "Per second,\nwhatever that is.",
        "std": "Width [m/s].",
    }
