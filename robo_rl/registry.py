"""Names to what they stand for: tasks and learners, as strings until one is asked for.

Another package adds its own with entry points in the groups "robo_rl.tasks" and
"robo_rl.learners"; a script adds to `TASKS` or `LEARNERS`.
"""

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from robo_rl.config import did_you_mean

if TYPE_CHECKING:
    from robo_rl.api import Env, EnvCfg, LearnerCfg

Kind = Literal["task", "learner"]

TASKS = {
    "go2-velocity": "robo_rl.tasks.locomotion.velocity:go2_velocity",
    "go2_arx5-reach": "robo_rl.tasks.loco_manip.reach:go2_arx5_reach",
    "go2_arx5-twist": "robo_rl.tasks.loco_manip.twist:go2_arx5_twist",
}
"""Name to "module:function"; the function, called without arguments, gives the EnvCfg."""

LEARNERS = {
    "ppo": "robo_rl.algorithms.ppo:PPOCfg",
    "distill": "robo_rl.algorithms.distill:DistillCfg",
}
"""Name to "module:class" of the LearnerCfg."""


def tasks() -> tuple[str, ...]:
    """The names of all tasks, sorted."""
    return tuple(sorted(_targets("task")))


def learners() -> tuple[str, ...]:
    """The names of all learners, sorted."""
    return tuple(sorted(_targets("learner")))


def configs() -> dict[str, Path]:
    """The library's own configuration files by name: tasks with their settings, ready to train."""
    folder = Path(__file__).parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def task(name: str) -> "EnvCfg":
    """The configuration of the task called name."""
    cfg: EnvCfg = find("task", name)()
    return cfg


def learner(name: str) -> "type[LearnerCfg]":
    """The configuration class of the learner called name."""
    cls: type[LearnerCfg] = find("learner", name)
    return cls


def make(
    name_or_cfg: "str | EnvCfg", *, num_envs: int = 1, device: str = "cpu", seed: int = 0
) -> "Env":
    """N environments of a task, by its name or its configuration."""
    cfg = task(name_or_cfg) if isinstance(name_or_cfg, str) else name_or_cfg
    return cfg.build(num_envs=num_envs, device=device, seed=seed)


def find(kind: Kind, name: str) -> Any:
    """The object that a name stands for; its module is imported now."""
    targets = _targets(kind)
    if name not in targets:
        known = ", ".join(sorted(targets))
        raise ValueError(f"no {kind} {name!r}, only {known}{did_you_mean(name, targets)}")
    module, _, attribute = targets[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{kind} {name!r} needs the package {error.name!r}, which is not installed: "
            "pip install 'robo_rl[all]' has it",
            name=error.name,
        ) from error


def _targets(kind: Kind) -> dict[str, str]:
    own = TASKS if kind == "task" else LEARNERS
    others = {entry.name: entry.value for entry in entry_points(group=f"robo_rl.{kind}s")}
    return others | own
