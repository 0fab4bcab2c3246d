"""go2_arx5-reach: stand and bring the end-effector to 6-D poses."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from robo_rl.tasks.env import TaskCfg
from robo_rl.tasks.loco_manip.twist import go2_arx5_twist
from robo_rl.tasks.terms.commands import BaseTwistCfg, EePathCfg

T = TypeVar("T")


def go2_arx5_reach() -> TaskCfg:
    """The twist task without walking: no gait, no base velocity, poses that are approached fast and
    held long."""
    twist = go2_arx5_twist()
    return replace(
        twist,
        name="go2_arx5-reach",
        commands={
            "base": BaseTwistCfg(standing=1.0),
            "ee": EePathCfg(speed=(0.5, 1.0), turn_speed=3.0, rest_s=(2.0, 4.0), in_world=0.0),
        },
        observations={
            group: _without(terms, "foot_height_command", "foot_phase")
            for group, terms in twist.observations.items()
        },
        rewards=_without(twist.rewards, "contact"),
        metrics=_without(twist.metrics, "contact_agreement"),
        train={**twist.train, "iterations": 1000},
    )


def _without(table: Mapping[str, T], *names: str) -> dict[str, T]:
    return {name: value for name, value in table.items() if name not in names}
