"""A run: what is trained and how, the folder it fills, and `train`.

A run folder `<out>/<task>/<time>_<name>/` holds `config.toml` (`robo-rl train <it>` gives the same
run), `run.json` (where it came from), `metrics.jsonl`, TensorBoard events, `checkpoints/`,
`eval.json` and `report.html`.
"""

import fcntl
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch

from robo_rl import checkpoint, metrics, registry
from robo_rl.api import Env, EnvCfg, EnvSpec, LearnerCfg, Policy
from robo_rl.config import (
    ConfigError,
    did_you_mean,
    dump_toml,
    flatten,
    from_dict,
    load_toml,
    merge,
    override,
    to_dict,
)

VERSION = 1
"""Of a run's TOML."""

RESUMABLE = ("iterations", "device", "eval_every", "save_every")
"""What may change when a run goes on."""


SHOW_CURSOR = b"\x1b[?25h"


class RunError(RuntimeError):
    """A run that cannot begin or go on: why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class RunCfg:
    """A run, fully resolved: a task, a learner and how they are run."""

    task: EnvCfg = field(metadata={"toml": False})
    algorithm: str = field(metadata={"toml": False})
    """The learner's name, which is also that of its table in the TOML."""
    learner: LearnerCfg = field(metadata={"toml": False})
    seed: int = 0
    """Of the environments, the learner and torch; the same seed gives the same run."""
    num_envs: int = 1024
    """Environments stepped together, N."""
    iterations: int = 1000
    """Updates of the learner; a run that is resumed may have them raised."""
    device: str = "cpu"
    """Where the environments and the learner are: cpu, cuda, cuda:1."""
    eval_every: int = 25
    """Iterations between evaluations, by which the best policy is chosen."""
    save_every: int = 100
    """Iterations between checkpoints that are kept."""
    name: str = ""
    """The end of the run folder's name; by default the algorithm's."""

    def __post_init__(self) -> None:
        for key in ("num_envs", "iterations", "eval_every", "save_every"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed is {self.seed}; it must be in [0, 2**31)")
        if not re.fullmatch(r"[\w.+-]*", self.name):
            raise ValueError(f"name is {self.name!r}; letters, digits and _ . + - are accepted")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device is {self.device!r}; cpu, cuda or cuda:<number> is accepted")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ValueError(f"device is {self.device!r}, but torch finds no GPU here; cpu works")

    def to_dict(self) -> dict[str, Any]:
        """The run's TOML: its settings, the table "task" and one named as the algorithm."""
        return {
            "version": VERSION,
            "algorithm": self.algorithm,
            **to_dict(self),
            "task": {"name": self.task.name} | to_dict(self.task),
            self.algorithm: to_dict(self.learner),
        }


def run_cfg(
    target: str | Path | EnvCfg | RunCfg, algorithm: str | None = None, **overrides: Any
) -> RunCfg:
    """The run meant by a task's name, the name or path of a TOML, or a task itself.

    The task's own settings for training come first, then the TOML's, then overrides.

    Args:
        overrides: as in the TOML: num_envs=64, task={...}, ppo={"learning_rate": 1e-3}.
    """
    if algorithm is not None:
        overrides["algorithm"] = algorithm
    if isinstance(target, RunCfg):
        if overrides.get("algorithm", target.algorithm) != target.algorithm:
            raise ConfigError(
                f"this run is of {target.algorithm!r}, not {overrides['algorithm']!r}"
            )
        return _override(target, overrides)
    task, table = _named(target) if isinstance(target, str | Path) else (target, {})
    own: Mapping[str, Any] = task.train
    return _resolve(task, merge(merge(own, table), overrides))


def _resolve(task: EnvCfg, table: dict[str, Any]) -> RunCfg:
    algorithm = table.get("algorithm", "ppo")
    if not isinstance(algorithm, str):
        known = ", ".join(registry.learners())
        raise ConfigError(f"algorithm is {algorithm!r}; the name of a learner is accepted: {known}")
    learner = from_dict(registry.learner(algorithm), table.get(algorithm, {}), algorithm)
    # A task or a file may have settings for several learners; only one of them learns.
    others = set(registry.learners()) - {algorithm}
    for other in others & table.keys():
        from_dict(registry.learner(other), table[other], other)
    rest = {key: value for key, value in table.items() if key not in (*others, algorithm)}
    return _override(RunCfg(task=task, algorithm=algorithm, learner=learner), rest)


def _override(cfg: RunCfg, table: Mapping[str, Any]) -> RunCfg:
    tables = ("algorithm", "task", cfg.algorithm)
    settings = {key: value for key, value in table.items() if key not in tables}
    known = [*to_dict(cfg), *tables]
    for key in settings:
        if key not in known:
            raise ConfigError(
                f"unknown key {key}; known: {', '.join(known)}{did_you_mean(key, known)}"
            )
    task = override(cfg.task, table.get("task", {}), "task")
    learner = override(cfg.learner, table.get(cfg.algorithm, {}), cfg.algorithm)
    return override(replace(cfg, task=task, learner=learner), settings)


def _named(target: str | Path) -> tuple[EnvCfg, dict[str, Any]]:
    """A task and the table that configures it, by a name or a path."""
    name, files = str(target), registry.configs()
    if name in registry.tasks():
        return registry.task(name), {}
    if name in files:
        return _load(files[name])
    if name.endswith(".toml"):
        return _load(Path(target))
    known = [*registry.tasks(), *files]
    raise ConfigError(
        f"no task or configuration {name!r}, only {', '.join(known)} and paths of .toml files"
        f"{did_you_mean(name, known)}"
    )


def _load(path: Path) -> tuple[EnvCfg, dict[str, Any]]:
    name, table = _parted(load_toml(path), path)
    return registry.task(name), table


def _parted(config: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """The task's name, and the settings in what `RunCfg.to_dict` gave, of this version."""
    version = config.get("version", "none")
    if version != VERSION:
        raise ConfigError(
            f"{path} has version {version}; this robo_rl reads version {VERSION}: "
            "see CHANGELOG.md for what changed"
        )
    name = task_name(config, path)
    task = {key: value for key, value in config["task"].items() if key != "name"}
    return name, {k: v for k, v in config.items() if k != "version"} | {"task": task}


def task_name(config: Mapping[str, Any], path: Path) -> str:
    """What a run's TOML, read from path, says is to be trained."""
    task = config.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    if not isinstance(name, str):
        raise ConfigError(
            f"{path} does not say what to train; it needs a table [task] with a name, "
            f"and its task is {task!r}"
        )
    return name


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    @classmethod
    def create(cls, cfg: RunCfg, out: str | Path = "runs") -> Self:
        """A new folder, with the configuration and where the run comes from."""
        stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{cfg.name or cfg.algorithm}"
        run = cls(Path(out) / cfg.task.name / stem)
        with run.writing():
            run.path.parent.mkdir(parents=True, exist_ok=True)
            run = cls(_new_folder(run.path))
        try:
            with run.writing():
                (run.path / "checkpoints").mkdir()
            run.write("config.toml", dump_toml(cfg.to_dict()))
            run.write("run.json", json.dumps(_provenance(cfg), indent=2))
        except BaseException:
            shutil.rmtree(run.path)
            raise
        return run

    @classmethod
    def open(cls, path: str | Path = "latest", out: str | Path = "runs", task: str = "*") -> Self:
        """A run folder by its path, or "latest": the one saved last, of a task or of all."""
        if str(path) == "latest":
            saved = [*Path(out).glob(f"{task}/*/checkpoints/latest.safetensors")]
            if not saved:
                raise RunError(
                    f"no run in {Path(out) / task} has a checkpoint; --out names another folder"
                )
            return cls(max(saved, key=lambda file: file.stat().st_mtime_ns).parent.parent)
        if not (Path(path) / "config.toml").is_file():
            raise RunError(f"{path} is no run folder: it has no config.toml")
        return cls(Path(path))

    @property
    def cfg(self) -> RunCfg:
        return run_cfg(self.path / "config.toml")

    @property
    def spec(self) -> EnvSpec:
        """Of the environment trained in."""
        return checkpoint.load_spec(self.checkpoint("latest"))

    def make(self, *, num_envs: int = 1, device: str = "cpu", seed: int = 0) -> Env:
        """Environments of the run's task, if what it is now still fits what was trained."""
        path = self.checkpoint("latest")
        return checkpoint.make(path, num_envs=num_envs, device=device, seed=seed)

    def policy(self, which: str = "best", *, device: str = "cpu") -> Policy:
        """Its best policy, "latest", or that of a kept iteration, "000100"."""
        return checkpoint.load_policy(self.path, which=which, device=device)

    def checkpoint(self, which: str = "best") -> Path:
        return checkpoint.find(self.path, which)

    @property
    def saved(self) -> bool:
        """Whether it can go on: not before its first iteration, nor on updates skipped alone."""
        return (self.path / "checkpoints" / "latest.safetensors").is_file()

    def metrics(self) -> list[dict[str, Any]]:
        """One line an iteration."""
        return metrics.read(self.path)

    def evaluation(self) -> dict[str, Any] | None:
        """The final evaluation of the best policy; None where training has not come to its end."""
        content = self._json("eval.json")
        if content is not None and not isinstance(content.get("scores"), dict):
            raise RunError(f"{self.path / 'eval.json'} is damaged: it has no scores; delete it")
        return content

    def origin(self) -> dict[str, Any]:
        """Command, code, packages and machine that the run came from."""
        return self._json("run.json") or {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in this folder; the system frees a dead one's lock."""
        with open(self.path / ".lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise RunError(
                    f"process {file.read() or '?'} is training in {self.path}; "
                    "wait for its end or stop it"
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Says of an error of the disk what it means for the run."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"cannot write {error.filename or self.path}: {error.strerror}; make room "
                "or choose another folder (--out); checkpoints that are there are whole"
            ) from error

    def write(self, name: str, text: str) -> None:
        """A file of the folder, whole or not at all."""
        with self.writing():
            checkpoint.write(self.path / name, text.encode())

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}; delete it") from error
        if not isinstance(content, dict):
            raise RunError(f"{path} is damaged: it holds no JSON object; delete it")
        return content


def train(
    target: str | Path | EnvCfg | RunCfg,
    *,
    out: str | Path = "runs",
    resume: str | Path | None = None,
    **overrides: Any,
) -> Run:
    """Train, evaluate the best policy and write the report; returns the run.

    Ctrl-C or SIGTERM saves and returns early; a second one ends the process at once.

    Args:
        target, overrides: see `run_cfg`.
        out: the folder of all runs.
        resume: a run folder to go on with, or "latest" of this task; the run keeps its
            configuration but for iterations, device, eval_every and save_every.
    """
    if resume is None:
        cfg = run_cfg(target, **overrides)
        run = Run.create(cfg, out)
    else:
        run, cfg = _resumed(target, out, resume, overrides)
    try:
        with run.lock(), _Stop() as stop:
            _train(run, cfg, stop, resumes=resume is not None)
    except Exception:
        if resume is None and not run.metrics():
            shutil.rmtree(run.path)  # it never began: a setting that the task or learner refused
        raise
    return run


def _train(run: Run, cfg: RunCfg, stop: "_Stop", *, resumes: bool) -> None:
    from robo_rl.report import report
    from robo_rl.runner import Runner

    runner = Runner(run, cfg)
    writer = None
    try:
        if resumes:
            runner.load()
            _check_incomplete(run, cfg, runner.iteration)
            _note_resume(run, cfg, runner.iteration)
        with run.writing():
            writer = metrics.Writer(run.path, runner.iteration)
        with _display(cfg, runner.env) as display:
            display.say(f"run folder: {run.path}")
            runner.train(writer, display, lambda: stop.requested)
            if runner.iteration < cfg.iterations:
                stopped = f"stopped after iteration {runner.iteration} of {cfg.iterations}"
                if not run.saved:
                    raise RunError(f"{stopped}; there is nothing to go on from")
                display.say(
                    f"{stopped}; go on with: {invocation()} train {cfg.task.name} "
                    f"--resume {shlex.quote(str(run.path))}"
                )
                return
        run.write("eval.json", json.dumps(runner.final_evaluation(), indent=2))
    finally:
        if writer:
            writer.close()
        runner.close()
    with run.writing():
        report([run.path], run.path / "report.html")


def _display(cfg: RunCfg, env: Env) -> metrics.Display:
    title = f"{cfg.task.name}, {cfg.algorithm}, seed {cfg.seed}"
    return metrics.Display(title, cfg.iterations, env.spec.heads, env.units)


def _resumed(
    target: str | Path | EnvCfg | RunCfg,
    out: str | Path,
    resume: str | Path,
    overrides: dict[str, Any],
) -> tuple[Run, RunCfg]:
    """A run folder to go on with, and its own configuration with what may change."""
    if isinstance(target, RunCfg):
        task = target.task
    else:
        task = _named(target)[0] if isinstance(target, str | Path) else target
    run = Run.open(resume, out, task.name)
    path = run.path / "config.toml"
    name, table = _parted(load_toml(path), path)
    if name != task.name:
        raise RunError(f"{run.path} is a run of {name!r}, not of {task.name!r}")
    cfg = run_cfg(target if isinstance(target, RunCfg) else _resolve(task, table), **overrides)
    # What was trained is what the checkpoint says; config.toml may have been edited since.
    latest = run.checkpoint("latest")
    table = _parted(checkpoint.load_config(latest), latest)[1]
    trained = _resolve(task, {k: v for k, v in table.items() if k not in RESUMABLE})
    before, after = flatten(trained.to_dict()), flatten(cfg.to_dict())
    changed = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    if refused := [key for key in changed if key not in RESUMABLE]:
        raise RunError(
            f"{run.path} goes on as it was configured; {', '.join(refused)} cannot change, only "
            f"{', '.join(RESUMABLE)}; an edited config.toml is to be set back"
        )
    return run, cfg


def _check_incomplete(run: Run, cfg: RunCfg, iteration: int) -> None:
    if iteration >= cfg.iterations and run.evaluation():
        raise RunError(
            f"{run.path} is complete with {iteration} iterations; to go on, raise them: "
            f"--iterations {2 * iteration}"
        )


def _note_resume(run: Run, cfg: RunCfg, iteration: int) -> None:
    note = {"iteration": iteration, "time": _now(), "command": shlex.join(sys.argv)}
    origin = run.origin()
    origin.setdefault("resumed", []).append(note)
    run.write("run.json", json.dumps(origin, indent=2))
    run.write("config.toml", dump_toml(cfg.to_dict()))
    # Of a policy that this training is about to better.
    (run.path / "eval.json").unlink(missing_ok=True)


def invocation() -> str:
    """How this program is started from here: what a printed line to type begins with."""
    if Path(sys.argv[0]).name != "robo-rl":
        return f"{shlex.quote(sys.executable)} -m robo_rl"
    found = shutil.which("robo-rl")
    typed = found is not None and Path(found).samefile(sys.argv[0])
    return "robo-rl" if typed else shlex.quote(sys.argv[0])


class _Stop:
    """Requested by the first Ctrl-C or SIGTERM; the second ends the process at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            signals = (signal.SIGINT, signal.SIGTERM)
            self._before = {number: signal.signal(number, self._handle) for number in signals}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if os.isatty(1):
                os.write(1, SHOW_CURSOR)  # the panel has hidden it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = True
        # Straight to the descriptor: the signal may have come in the middle of a print.
        with suppress(OSError):  # nobody reads it
            os.write(2, b"\nstopping after this iteration; once more to stop at once\n")


def _new_folder(path: Path) -> Path:
    """The folder made, with a number behind its name where there is one already."""
    for count in itertools.count(1):
        new = path if count == 1 else path.with_name(f"{path.name}-{count}")
        try:
            new.mkdir()
        except FileExistsError:
            continue
        return new
    raise AssertionError


def _provenance(cfg: RunCfg) -> dict[str, Any]:
    folders = [
        _git("rev-parse", "--show-toplevel", at=at) for at in (Path(), Path(__file__).parent)
    ]
    return {
        "command": shlex.join(sys.argv),
        "started": _now(),
        "seed": cfg.seed,
        "git": [
            {
                "folder": folder,
                "commit": _git("rev-parse", "HEAD", at=Path(folder)),
                "status": _git("status", "--porcelain", at=Path(folder)),
                "diff": _git("diff", "HEAD", at=Path(folder)),
            }
            for folder in dict.fromkeys(folder for folder in folders if folder)
        ],
        "packages": {package.name: package.version for package in distributions()},
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name(cfg.device) if cfg.device != "cpu" else None,
        },
    }


def _git(*arguments: str, at: Path) -> str | None:
    """What git says, None where there is no git or no repository."""
    try:
        git = subprocess.run(
            ["git", *arguments], cwd=at, capture_output=True, text=True, errors="replace"
        )
    except OSError:
        return None
    return git.stdout.strip() if git.returncode == 0 else None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    found = re.search(r"model name\s*: (.*)", text)
    return found.group(1) if found else platform.processor()


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")
