from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from robo_rl.api import ActionSpec, Command, EnvSpec, Joint, ObsGroup, ObsTerm
from robo_rl.config import ConfigError, dump_toml, from_dict, load_toml, override, to_dict


class Term(Protocol):
    @property
    def weight(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Track:
    weight: float = 1.0
    sigma: float = 0.25

    def __post_init__(self) -> None:
        if self.sigma <= 0.0:
            raise ValueError(f"sigma is {self.sigma}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class Limits:
    weight: float = -0.1


def terms() -> dict[str, dict[str, Term]]:
    return {
        "locomotion": {"track_velocity": Track(), "joint_limits": Limits()},
        "manipulation": {"track_pose": Track(sigma=0.1)},
    }


@dataclass(frozen=True, kw_only=True)
class Cfg:
    robot: object = field(default_factory=object, metadata={"toml": False})
    rewards: Mapping[str, Mapping[str, Term]] = field(default_factory=terms)
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    mode: Literal["normalised_sum", "pcgrad"] = "normalised_sum"
    rate: float = 1e-3
    steps: int = 24
    adaptive: bool = True
    hidden: tuple[int, ...] = (512, 256)
    range: tuple[float, float] = (-1.0, 1.0)
    clip: float | None = 5.0
    history: int | None = None
    where: Path = Path("here")
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    teachers: tuple[Term, ...] = (Track(), Limits())


def test_override_reaches_any_depth_and_leaves_the_original_alone() -> None:
    cfg = Cfg()
    new = override(
        cfg,
        {
            "rate": 1,
            "rewards": {"locomotion": {"track_velocity": {"weight": 2}}},
            "weights": {"locomotion": 3},
            "hidden": [64, 64, 64],
            "clip": "none",
            "history": 5,
            "teachers": [{"sigma": 1.0}, {}],
        },
    )
    assert new.rewards["locomotion"]["track_velocity"] == Track(weight=2.0)
    assert new.rewards["locomotion"]["joint_limits"] == Limits()
    assert new.rewards["manipulation"] == cfg.rewards["manipulation"]
    assert (new.rate, type(new.rate)) == (1.0, float)
    assert new.weights == {"locomotion": 3.0}
    assert (new.hidden, new.clip, new.history) == ((64, 64, 64), None, 5)
    assert new.teachers == (Track(sigma=1.0), Limits())
    assert new.robot is cfg.robot
    assert cfg.rewards["locomotion"]["track_velocity"] == Track()


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"rat": 1.0}, "unknown key ppo.rat;.*did you mean 'rate'"),
        ({"robot": 1}, "unknown key ppo.robot"),
        (
            {"rewards": {"locomotoin": {}}},
            "unknown key ppo.rewards.locomotoin; known: locomotion, manipulation;.*'locomotion'",
        ),
        (
            {"rewards": {"locomotion": {"track_velocty": {}}}},
            "ppo.rewards.locomotion.track_velocty;.*did you mean 'track_velocity'",
        ),
        (
            {"rewards": {"locomotion": {"track_velocity": {"wieght": 1.0}}}},
            "ppo.rewards.locomotion.track_velocity.wieght; known: weight, sigma;.*'weight'",
        ),
        (
            {"rewards": {"locomotion": {"track_velocity": {"sigma": -1.0}}}},
            "ppo.rewards.locomotion.track_velocity: sigma is -1.0; it must be above 0",
        ),
        ({"rewards": {"locomotion": {"track_velocity": 3}}}, "track_velocity is 3 .int."),
        ({"mode": "pcgrat"}, "ppo.mode is 'pcgrat'; one of .*did you mean 'pcgrad'"),
        ({"rate": "fast"}, r"ppo.rate is 'fast' \(str\); float is accepted"),
        ({"rate": True}, r"ppo.rate is True \(bool\); float is accepted"),
        ({"steps": 1.5}, r"ppo.steps is 1.5 \(float\); int is accepted"),
        ({"steps": True}, r"ppo.steps is True \(bool\); int is accepted"),
        ({"adaptive": 1}, r"ppo.adaptive is 1 \(int\); bool is accepted"),
        ({"range": [1.0]}, r"ppo.range has 1 items, \[1.0\]; it takes 2"),
        ({"hidden": [64, "a"]}, r"ppo.hidden\[1\] is 'a' \(str\); int is accepted"),
        ({"hidden": 64}, "ppo.hidden is 64 .int.; a list is accepted"),
        ({"clip": "off"}, "ppo.clip is 'off' .str.; float is accepted"),
        ({"weights": {"arm": "x"}}, "ppo.weights.arm is 'x' .str.; float is accepted"),
    ],
)
def test_what_cannot_be_set_is_an_error_that_says_where(mapping: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        override(Cfg(), mapping, "ppo")


def test_toml_gives_back_the_tree_that_was_written(tmp_path: Path) -> None:
    cfg = override(
        Cfg(),
        {
            "rate": 1e-5,
            "clip": None,
            "range": [-inf, inf],
            "where": 'a "quoted" \\ path\n\x7fé',
            "weights": {"a b": 0.1, "é": 1e22},
            "extra": {"list": [{"x": 1, "y": [True, "z"]}], "empty": {}},
        },
    )
    path = tmp_path / "cfg.toml"
    path.write_text(dump_toml(to_dict(cfg)), encoding="utf-8")
    again = override(Cfg(robot=cfg.robot), load_toml(path))
    assert again == cfg
    assert "robot" not in load_toml(path)


def test_a_typed_tree_survives_json() -> None:
    obs = ObsTerm(name="gravity", size=3, unit="1", frame="base", clip=None)
    limits = (-inf, inf)
    joint = Joint(
        name="j", default=0.1, kp=25.0, kd=0.5, position=limits, velocity_limit=30.0,
        torque_limit=23.7,
    )  # fmt: skip
    spec = EnvSpec(
        name="toy",
        obs={"actor": ObsGroup(terms=(obs,), history=5)},
        action=ActionSpec(joints=("j",), scale=(0.25,), offset=(0.1,), low=(-1.0,), high=(1.0,)),
        joints=(joint,),
        commands=(Command(name="base", fields=("x",), units=("m/s",), low=(-1.0,), high=(1.0,)),),
        heads=("a", "b"),
        costs=(),
        step_s=0.02,
        max_episode_steps=None,
    )
    assert from_dict(EnvSpec, to_dict(spec)) == spec
    broken = to_dict(spec)
    del broken["heads"], broken["obs"]["actor"]["terms"][0]["unit"]
    with pytest.raises(ConfigError, match=r"obs.actor.terms\[0\]: missing unit"):
        from_dict(EnvSpec, broken)


def test_what_toml_cannot_hold_is_refused_where_it_lies() -> None:
    with pytest.raises(TypeError, match=r"extra\.f is a function"):
        to_dict(Cfg(extra={"f": terms}))


def test_a_file_that_is_not_toml_or_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"bad.toml is not TOML: .*line 1"):
        load_toml(path)
    with pytest.raises(ConfigError, match=r"cannot read .*none.toml: No such file"):
        load_toml(tmp_path / "none.toml")
