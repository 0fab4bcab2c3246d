"""robo-rl: every command, and the one module that opens every door.

What is heavy is imported by the command that needs it, so that --help answers at once.
"""

import dis
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from robo_rl import registry
from robo_rl.config import ConfigError, did_you_mean, load_toml

if TYPE_CHECKING:
    from torch import Tensor, nn

    from robo_rl.api import Env, EnvCfg, Memory, Obs, Policy
    from robo_rl.run import Run

RunArg = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunArgs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
BenchArg = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]

BENCHMARKS = {"throughput": "robo_rl.tasks.bench:throughput"}
"""Name to "module:function"; the function gives flat numbers by name."""

RUNS = Path("runs")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the process's exit code: 2 for what was typed, 1 for what failed."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
            hint = did_you_mean(argv[0], COMMANDS)
            raise ConfigError(f"no command {argv[0]!r}, only {', '.join(COMMANDS)}{hint}")
        if argv[:1] == ["train"]:
            return _train(argv[1:])
        return int(
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                args=argv,
                prog="robo-rl",
                description="Train, watch, measure and export policies for legged robots.",
            )
            or 0
        )
    except SystemExit as stop:  # tyro's: --help, or an error that it has printed
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # robo-rl ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("ROBO_RL_DEBUG") or not _is_for_the_user(error):
            raise
        print(f"robo-rl: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) or type(error) is ValueError else 1


def _is_for_the_user(error: Exception) -> bool:
    """Whether the message says what to do; another error is a bug, and its traceback says more.

    It does where the class is the library's own or the system's. A ValueError is raised by numpy,
    torch and Python too: there it does where a `raise` in the library's own code gave it.
    """
    if _is_ours(type(error).__module__) or isinstance(error, OSError | ModuleNotFoundError):
        return True
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return (
        isinstance(error, ValueError | NotImplementedError)
        and trace is not None
        and _is_ours(trace.tb_frame.f_globals["__name__"])
        and trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    )


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "robo_rl"


def list_() -> None:
    """What there is: tasks, configurations, learners, pretrained policies, runs."""
    sections = {
        "tasks": registry.tasks(),
        "configurations": registry.configs(),
        "learners": registry.learners(),
        "pretrained": [f"pretrained:{name}" for name in _pretrained()],
        f"runs in {RUNS}": [_summary(path.parent) for path in sorted(RUNS.glob("*/*/config.toml"))],
    }
    for title, lines in sections.items():
        print(title)
        print("".join(f"  {line}\n" for line in lines) or "  none\n")


def train(
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")] = "",
) -> None:
    """Train a policy: robo-rl train TARGET --help shows all that can be set.

    Args:
        target: a task, a configuration (robo-rl list shows both) or the path of a TOML.
    """


@dataclass(frozen=True, kw_only=True)
class TrainArgs:
    """Train a policy; ends with a run folder and the commands worth typing next."""

    algorithm: str = "ppo"
    """The learner; its settings are the flags that begin with its name."""
    out: Path = RUNS
    """Folder of all runs."""
    resume: str | None = None
    """Go on with this run folder, or with the latest of the task. What can change then: iterations,
    device, eval-every, save-every."""


def _train(argv: list[str]) -> int:
    """train is apart: its flags are the fields of what is trained."""
    if not argv or argv[0] in ("-h", "--help"):
        targets = ", ".join([*registry.tasks(), *registry.configs()])
        print(
            f"usage: robo-rl train TARGET [--flags]\n\nTARGET is {targets} or the path of a TOML."
        )
        print("robo-rl train TARGET --help shows its flags with units and defaults.")
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise ConfigError(f"{argv[0]} comes too early: robo-rl train TARGET {argv[0]} ...")
    from robo_rl import flags, run

    target, *rest = argv
    resume, algorithm = _peek(rest, "--resume"), _peek(rest, "--algorithm")
    cfg = run.run_cfg(target, algorithm)
    if resume is not None:
        # Flags are changes of what the run was configured with.
        resumed = run.Run.open(resume, _peek(rest, "--out") or RUNS, cfg.task.name)
        cfg = run.run_cfg(resumed.cfg, algorithm)
    arguments, overrides = flags.parse(
        TrainArgs,
        {"": cfg, "task": cfg.task, cfg.algorithm: cfg.learner},
        rest,
        prog=f"robo-rl train {target}",
    )
    trained = run.train(
        cfg if resume is None else target,
        out=arguments.out,
        resume=arguments.resume,
        **overrides,
    )
    if trained.evaluation() is not None:
        _finish(trained)
    return 0


def _finish(run: "Run") -> None:
    """What to type next, and a video where one can be drawn."""
    from robo_rl.run import invocation

    print(f"\n{run.path} holds:")
    print(", ".join(sorted(path.name for path in run.path.iterdir() if path.name[0] != ".")))
    command, folder = invocation(), shlex.quote(str(run.path))
    has_ee = "ee" in [command.name for command in run.spec.commands]
    print(
        f"\n{command} play {folder}\n"
        f"{command} eval {folder}{' --suite tracking' if has_ee else ''}\n"
        f"{command} export {folder} --out {folder}/export\n"
    )
    video = run.path / "video.mp4"
    print(f"drawing {video}", flush=True)
    try:
        from robo_rl.tasks import viewer

        policy, env = _subject(str(run.path), num_envs=1, seed=0)
        try:
            viewer.record(env, policy, video, seconds=10.0)
        finally:
            env.close()
    except Exception as error:  # whatever stops a drawing, the training is done
        print(f"no video: {error or type(error).__name__}")


def play(
    run: RunArg,
    /,
    *,
    video: Path | None = None,
    seconds: float = 20.0,
    num_envs: int = 1,
    seed: int = 0,
    policy: Literal["trained", "zero", "random"] = "trained",
) -> None:
    """Watch a policy: in MuJoCo's window, without a display in the browser, or as a video.

    Args:
        run: a run folder, a checkpoint file, latest or pretrained:NAME; a task's name too where the
            policy is not the trained one.
        video: draw this file (.mp4 or .gif) instead.
        seconds: length of the video [s].
        num_envs: robots to choose from.
        seed: of the episodes.
        policy: what acts: zero holds the default pose, random is uniform within the bounds.
    """
    from robo_rl.tasks import viewer

    if policy == "trained":
        actor, env = _subject(run, num_envs=num_envs, seed=seed)
    else:
        env = _task(run).build(num_envs=num_envs, device="cpu", seed=seed)
        actor = Untrained(env, 1.0 if policy == "random" else 0.0)
    try:
        if video is None:
            viewer.play(env, actor)
        else:
            viewer.record(env, actor, video, seconds=seconds)
            print(video)
    finally:
        env.close()


def eval_(
    run: RunArg,
    /,
    *,
    suite: Literal["tracking"] | None = None,
    json: Path | None = None,
    out: Path | None = None,
    quick: bool = False,
    num_envs: int | None = None,
    seed: int = 0,
) -> None:
    """Measure a policy: whole episodes of its task, or a suite.

    Args:
        run: a run folder, a checkpoint file, latest or pretrained:NAME.
        suite: tracking: end-effector trajectories, standing and walking.
        json: write the result to this file.
        out: folder for the suite's plots and tracking.json; by default tracking/ in the run folder.
        quick: a third of the suite.
        num_envs: environments; by default 64, of the suite 32 a scenario.
        seed: of the episodes.
    """
    if suite is None:
        from robo_rl.evaluation import evaluate

        policy, env = _subject(run, num_envs=64 if num_envs is None else num_envs, seed=seed)
        try:
            scores = evaluate(policy, env, seed=seed)
        finally:
            env.close()
        result: dict[str, Any] = {"run": run, "num_envs": env.num_envs, "seed": seed, **scores}
        print(_columns(scores, env.units))
    else:
        from robo_rl.tasks.loco_manip.tracking import tracking

        policy, env = _subject(run, num_envs=1, seed=seed)
        env.close()
        plots = out or _folder(run) / "tracking"
        tracked = tracking(
            policy,
            _task(run),
            num_envs=32 if num_envs is None else num_envs,
            quick=quick,
            seed=seed,
            out=plots,
        )
        result = {"run": run, **tracked.to_dict()}
        _write_json(plots / "tracking.json", result)
        print(f"{tracked.table()}\nplots: {plots}")
    _write_json(json, result)


def report(runs: RunArgs, /, *, out: Path | None = None) -> None:
    """Compare runs in one HTML file: curves, tables, what differs in their configurations.

    Args:
        runs: run folders, or latest.
        out: the file; by default report.html, in the run folder if it is one.
    """
    from robo_rl.report import report as write
    from robo_rl.run import Run

    if not runs:
        raise ConfigError("name a run or more: robo-rl report RUN [RUN ...]")
    folders = [Run.open(run).path for run in runs]
    out = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    write(folders, out)
    print(out)


def export(run: RunArg, /, *, out: Path) -> None:
    """Write policy.onnx and contract.json, and check onnxruntime against torch.

    Args:
        run: a run folder, a checkpoint file, latest or pretrained:NAME.
        out: the folder to write; one that an export made is replaced.
    """
    from robo_rl.sim2real.export import export as write

    written = write(_checkpoint(run), out)
    print(f"{written.folder}: {', '.join(sorted(path.name for path in written.folder.iterdir()))}")
    for way, shapes in (("in", written.inputs), ("out", written.outputs)):
        for name, shape in shapes.items():
            print(f"  {way:3}  {name}: N x {' x '.join(map(str, shape))}")
    print(f"onnxruntime and torch differ by at most {written.error:.1e}")
    if written.unmeasured:
        print(f"it reads what no robot can measure: {', '.join(written.unmeasured)}")


def bench(
    name: BenchArg,
    /,
    *,
    task: str = "go2_arx5-twist",
    num_envs: int = 1024,
    json: Path | None = None,
) -> None:
    """Measure speed on this machine.

    Args:
        name: throughput: environment steps against the bare simulator's.
        task: what is stepped.
        num_envs: environments stepped together.
        json: write the numbers to this file, flat.
    """
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise ConfigError(f"no benchmark {name!r}, only {known}{did_you_mean(name, BENCHMARKS)}")
    from importlib import import_module

    module, _, function = BENCHMARKS[name].partition(":")
    numbers = getattr(import_module(module), function)(task, num_envs=num_envs)
    print(_columns(numbers, {}))
    _write_json(json, numbers)


def doctor() -> int:
    """Check this machine, and say what is missing and how to get it."""
    from robo_rl.doctor import checks

    try:
        from robo_rl.tasks.viewer import renderers

        drawing = renderers()
    except ModuleNotFoundError:  # MuJoCo's; the checks say so
        drawing = ()
    failed = False
    for check in checks(drawing):
        mark = "ok  " if check.ok else "FAIL" if check.required else "miss"
        print(f"{mark}  {check.name}: {check.found}")
        if not check.ok:
            print(f"      {check.fix}")
            failed |= check.required
    return int(failed)


class Untrained:
    """A `Policy` that has learnt nothing: actions uniform in a share of their range, 0 for none."""

    obs_groups: tuple[str, ...] = ()

    def __init__(self, env: "Env", share: float) -> None:
        import torch

        action = env.spec.action
        self.memory: Memory = {}
        self._low, self._high = share * torch.tensor(action.low), share * torch.tensor(action.high)
        self._num_envs = env.num_envs

    def act(self, obs: "Obs", *, explore: bool = False) -> "Tensor":
        drawn = self._low.new_empty(self._num_envs, len(self._low)).uniform_()
        return self._low + (self._high - self._low) * drawn

    def reset(self, mask: "Tensor | None" = None) -> None: ...

    def graph(self) -> "nn.Module":
        raise NotImplementedError("a policy that has learnt nothing is not exported")


COMMANDS: dict[str, Callable[..., Any]] = {
    "list": list_,
    "train": train,
    "play": play,
    "eval": eval_,
    "report": report,
    "export": export,
    "bench": bench,
    "doctor": doctor,
}


def _peek(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag that says which others there are."""
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _pretrained() -> dict[str, Path]:
    """Policies that come with the library, by name."""
    folder = Path(__file__).parent / "configs" / "pretrained"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def _checkpoint(run: str) -> Path:
    """The checkpoint file that a RUN means: its best, or the one named."""
    from robo_rl.run import Run

    kind, _, name = run.partition(":")
    if kind == "pretrained" and name:
        shipped = _pretrained()
        if name not in shipped:
            known = ", ".join(shipped) or "none"
            raise ConfigError(
                f"no pretrained policy {name!r}, only {known}{did_you_mean(name, shipped)}"
            )
        return shipped[name]
    if run in registry.tasks() or run in registry.configs():
        raise ConfigError(f"{run!r} is not a run; train it first, or name a run such as latest")
    return Path(run) if Path(run).is_file() else Run.open(run).checkpoint("best")


def _folder(run: str) -> Path:
    """Where what is found out about a RUN belongs: its folder, else here."""
    folder = _checkpoint(run).parent.parent
    return folder if (folder / "config.toml").is_file() else Path()


def _task(run: str) -> "EnvCfg":
    """The task that a RUN was trained in, or that a task's name or a configuration means."""
    from robo_rl.checkpoint import load_task
    from robo_rl.run import run_cfg

    if run in registry.tasks() or run in registry.configs() or run.endswith(".toml"):
        return run_cfg(run).task
    return load_task(_checkpoint(run))


def _subject(run: str, *, num_envs: int, seed: int) -> "tuple[Policy, Env]":
    """A trained policy and its task's environments, if the task still is what it was."""
    from robo_rl.checkpoint import load_policy, make

    path = _checkpoint(run)
    return load_policy(path), make(path, num_envs=num_envs, seed=seed)


def _summary(folder: Path) -> str:
    """A run in a line: its folder, and its score once training is complete."""
    try:
        if "task" not in load_toml(folder / "config.toml"):
            return f"{folder}  damaged: its config.toml names no task"
        evaluation = json.loads((folder / "eval.json").read_text(encoding="utf-8"))
        score = evaluation["score"].removeprefix("-")
        return f"{folder}  {score} {evaluation['scores'][score]:.4g}"
    except FileNotFoundError:
        return f"{folder}  not complete"
    except ConfigError as error:
        return f"{folder}  damaged: {error}"
    except (AttributeError, LookupError, OSError, TypeError, ValueError):
        return f"{folder}  damaged: eval.json holds no score"


def _columns(values: Mapping[str, Any], units: Mapping[str, str]) -> str:
    """Values by name, a line each."""
    width = max(map(len, values), default=0)
    shown = {k: f"{v:.5g}" if isinstance(v, float) else str(v) for k, v in values.items()}
    return "\n".join(f"{k:{width}}  {v} {units.get(k, '')}".rstrip() for k, v in shown.items())


def _write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
