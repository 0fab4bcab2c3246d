import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from robo_rl.api import Step
from robo_rl.checkpoint import CheckpointError, load, load_meta
from robo_rl.config import ConfigError
from robo_rl.metrics import MetricsError
from robo_rl.run import Run, RunError, _Stop, invocation, run_cfg, train

RunToy = Callable[..., Run]
TIMES = ("time_s", "steps_per_s", "simulation_s", "learning_s", "evaluation_s")


def untimed(run: Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMES} for line in run.metrics()]


def assert_equal(a: Any, b: Any, where: str = "state") -> None:
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if key != "time_s":
                assert_equal(a[key], b[key], f"{where}/{key}")
    else:
        assert a == b, where


def stop_in_step(monkeypatch: pytest.MonkeyPatch, toys: ModuleType, number: int) -> None:
    """Ctrl-C comes in the middle of the training environment's step of this number."""
    original = toys.PointEnv.step

    def step(env: Any, action: torch.Tensor) -> Step:
        if env.num_envs == 8 and env._count == number:
            os.kill(os.getpid(), signal.SIGINT)
        result: Step = original(env, action)
        return result

    monkeypatch.setattr(toys.PointEnv, "step", step)


def test_a_run_folder_holds_what_was_promised(tmp_path: Path) -> None:
    run = train("point", algorithm="climber", out=tmp_path, name="first")
    names = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    events = {name for name in names if name.startswith("events.out.tfevents")}
    assert names - events == {
        ".lock",
        "config.toml",
        "run.json",
        "metrics.jsonl",
        "eval.json",
        "report.html",
        *(f"checkpoints/{n}.safetensors" for n in ("latest", "best", "000003", "000006")),
    }
    assert len(events) == 1
    assert run.path.parent.name == "point" and run.path.name.endswith("_first")
    origin = run.origin()
    assert origin["packages"]["torch"] == torch.__version__
    assert origin["seed"] == 0 and origin["machine"]["cores"] == os.cpu_count()
    assert len(origin["git"][0]["commit"]) == 40
    lines = run.metrics()
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["steps"] for line in lines] == [40, 80, 120, 160, 200, 240]
    assert [("eval/score" in line) for line in lines] == [False, True] * 3
    best, _ = load(run.checkpoint("best"))
    assert list(best) == ["learner"]
    best_line = max((line for line in lines if "eval/score" in line), key=lambda x: x["eval/score"])
    assert load_meta(run.checkpoint("best"))["iteration"] == best_line["iteration"]
    evaluation = run.evaluation()
    assert evaluation is not None and evaluation["units"] == {"position_error": "m"}
    assert set(evaluation["scores"]) >= {"position_error", "return", "fall"}
    assert run.spec == run.make().spec


def test_the_same_seed_gives_the_same_run_and_another_seed_another(run_toy: RunToy) -> None:
    first, again, other = run_toy(), run_toy(), run_toy(seed=1)
    assert untimed(first) == untimed(again) != untimed(other)
    assert_equal(load(first.checkpoint("latest"))[0], load(again.checkpoint("latest"))[0])
    assert first.path != again.path, "two runs that begin in the same second"


def test_the_config_in_a_run_folder_gives_the_same_run(run_toy: RunToy, tmp_path: Path) -> None:
    first = run_toy(task={"episode_steps": 7}, climber={"step": 0.25}, seed=3)
    again = train(first.path / "config.toml", out=tmp_path)
    assert again.cfg == first.cfg
    assert again.cfg.to_dict()["task"]["episode_steps"] == 7
    assert untimed(again) == untimed(first)


def test_evaluations_leave_training_undisturbed(run_toy: RunToy) -> None:
    often, never = run_toy(eval_every=1), run_toy(eval_every=100)
    states = [load(run.checkpoint("latest"))[0] for run in (often, never)]
    for state in states:
        del state["best"]
    assert_equal(states[0], states[1])


def test_a_run_that_is_stopped_and_resumed_equals_an_unbroken_one(
    run_toy: RunToy, monkeypatch: pytest.MonkeyPatch, toys: ModuleType, capfd: Any
) -> None:
    unbroken = run_toy()
    with monkeypatch.context() as patch:
        stop_in_step(patch, toys, 13)  # in the third iteration of five steps
        stopped = run_toy()
    assert [line["iteration"] for line in stopped.metrics()] == [1, 2, 3]
    out, err = capfd.readouterr()
    said = "stopped after iteration 3 of 6; go on with: "
    assert f"{said}{invocation()} train point --resume {stopped.path}" in out
    assert "once more to stop at once" in err
    resumed = run_toy(resume="latest")
    assert resumed.path == stopped.path
    assert untimed(resumed) == untimed(unbroken)
    assert_equal(load(resumed.checkpoint("latest"))[0], load(unbroken.checkpoint("latest"))[0])
    assert_equal(load(resumed.checkpoint("best"))[0], load(unbroken.checkpoint("best"))[0])
    assert resumed.evaluation() == unbroken.evaluation()
    assert [note["iteration"] for note in resumed.origin()["resumed"]] == [3]


def test_a_stop_before_the_first_iteration_leaves_nothing(
    run_toy: RunToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toys: ModuleType
) -> None:
    original = toys.PointTask.build

    def build(*arguments: Any, **settings: Any) -> Any:
        if settings["num_envs"] == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **settings)

    monkeypatch.setattr(toys.PointTask, "build", build)
    with pytest.raises(RunError, match="stopped after iteration 0 of 6; there is nothing to go on"):
        run_toy()
    assert not list(tmp_path.glob("point/*"))


@pytest.mark.parametrize("ppo", [{}, {"gru": 8}], ids=["mlp", "gru"])
def test_a_simulated_robot_goes_on_as_if_nothing_had_been(
    tmp_path: Path, run_toy: RunToy, ppo: dict[str, int]
) -> None:
    overrides: dict[str, Any] = {
        "out": tmp_path,
        "num_envs": 8,
        "eval_every": 2,
        "task": {"episode_length_s": 0.3, "num_threads": 1},
        "ppo": {"num_steps": 6, "actor_hidden": (16,), "critic_hidden": (16,), **ppo},
    }
    unbroken = train("go2_arx5-twist", iterations=4, **overrides)
    broken = train("go2_arx5-twist", iterations=2, **overrides)
    train("go2_arx5-twist", out=tmp_path, resume=broken.path, iterations=4)
    assert untimed(broken) == untimed(unbroken)
    assert sum(line["episodes"] for line in unbroken.metrics()) >= 8
    assert_equal(load(broken.checkpoint("latest"))[0], load(unbroken.checkpoint("latest"))[0])


def test_no_iteration_appears_twice_after_a_crash(run_toy: RunToy) -> None:
    run = run_toy(iterations=4)
    path = run.path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    ghosts = [json.dumps({**json.loads(lines[-1]), "iteration": i}) for i in (5, 6)]
    path.write_text("\n".join([*lines, *ghosts, '{"iteration": 7, "ste']))
    run_toy(resume=run.path, iterations=6)
    assert [line["iteration"] for line in run.metrics()] == [1, 2, 3, 4, 5, 6]
    assert run.metrics()[4]["steps"] == 200


def test_a_complete_run_goes_on_when_iterations_are_raised(run_toy: RunToy) -> None:
    run = run_toy()
    with pytest.raises(RunError, match=r"is complete with 6 iterations; .*--iterations 12"):
        run_toy(resume=run.path)
    assert run_toy(resume=run.path, iterations=8).cfg.iterations == 8
    unbroken = run_toy(iterations=8)
    assert_equal(load(run.checkpoint("latest"))[0], load(unbroken.checkpoint("latest"))[0])


def test_a_complete_run_that_goes_on_and_stops_is_complete_no_more(
    run_toy: RunToy, monkeypatch: pytest.MonkeyPatch, toys: ModuleType
) -> None:
    run = run_toy()
    assert run.evaluation() is not None
    with monkeypatch.context() as patch:
        stop_in_step(patch, toys, 31)  # in the seventh iteration of five steps
        run_toy(resume=run.path, iterations=9)
    assert run.metrics()[-1]["iteration"] == 7
    assert run.evaluation() is None


def test_what_cannot_be_resumed_is_refused(
    run_toy: RunToy, tmp_path: Path, toys: ModuleType
) -> None:
    with pytest.raises(RunError, match=f"no run in {tmp_path}/point has a checkpoint"):
        run_toy(resume="latest")
    with pytest.raises(RunError, match="elsewhere is no run folder: it has no config"):
        run_toy(resume=tmp_path / "elsewhere")
    run = run_toy()
    with pytest.raises(RunError, match=r"seed, climber.step cannot change, only iterations, dev"):
        run_toy(resume=run.path, climber={"step": 0.1}, seed=2, iterations=9)
    with pytest.raises(RunError, match="is a run of 'point', not of 'line'"):
        train(toys.PointTask(name="line"), resume=run.path)
    state = run.path / "checkpoints" / "latest.safetensors"
    state.rename(state.with_name("000001.safetensors"))
    with pytest.raises(CheckpointError, match=r"no checkpoint 'latest' in .*; it has 000001"):
        run_toy(resume=run.path, iterations=9)


def test_a_task_that_grew_since_is_refused_with_both_lists(
    run_toy: RunToy, monkeypatch: pytest.MonkeyPatch, toys: ModuleType
) -> None:
    run = run_toy()
    original = toys.PointTask.build

    def build(cfg: Any, **arguments: Any) -> Any:
        env = original(cfg, **arguments)
        env.spec = replace(env.spec, heads=("reach", "effort", "contact"))
        return env

    monkeypatch.setattr(toys.PointTask, "build", build)
    lists = r"reward groups\s+checkpoint: \['reach', 'effort'\]\s+task: .*'contact'\]"
    with pytest.raises(CheckpointError, match=lists):
        run_toy(resume=run.path, iterations=9)
    with pytest.raises(CheckpointError, match=lists):
        run.make()


def test_a_second_process_in_a_run_folder_is_refused(run_toy: RunToy) -> None:
    run = run_toy()
    with (
        run.lock(),
        pytest.raises(RunError, match=f"process {os.getpid()} is training in {run.path}"),
    ):
        run_toy(resume=run.path, iterations=9)


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*file/point: Not a directory; .*--out"):
        train("point", algorithm="climber", out=tmp_path / "file")


def test_a_full_disk_stops_a_run_and_leaves_its_checkpoints(
    run_toy: RunToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_toy()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_room(*arguments: Any) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr("robo_rl.metrics.Writer.write", no_room)
        with pytest.raises(RunError, match=r"cannot write .*: No space left on device; make room"):
            run_toy(resume=run.path, iterations=9)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_room)
        with pytest.raises(RunError, match="No space left on device"):
            run_toy(resume=run.path, iterations=9)
    assert load_meta(run.checkpoint("latest"))["iteration"] == 6


@pytest.mark.parametrize(
    ("target", "overrides", "said"),
    [
        ("piont", {}, "no task or configuration 'piont', only .*did you mean 'point'"),
        ("point", {"algorithm": "climbr"}, "no learner 'climbr', only .*did you mean 'climber'"),
        ("point", {"num_env": 3}, "unknown key num_env; known: .*did you mean 'num_envs'"),
        ("point", {"climber": {"stepp": 1.0}}, "unknown key climber.stepp; .*did you mean 'step'"),
        ("point", {"task": {"pairs": 1}}, "unknown key task.pairs; .*did you mean 'pair'"),
        ("point", {"iterations": 0}, "iterations is 0; it must be at least 1"),
        ("point", {"num_envs": 1.5}, "num_envs is 1.5 .float.; int is accepted"),
        ("point", {"device": "gpu"}, "device is 'gpu'; cpu, cuda or cuda:<number>"),
        ("point", {"name": "a/b"}, "name is 'a/b'; letters, digits"),
        ("point", {"seed": -1}, r"seed is -1; it must be in \[0"),
    ],
)
def test_bad_settings_name_what_is_accepted(
    target: str, overrides: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        run_cfg(target, **{"algorithm": "climber", **overrides})


def test_a_file_overrides_the_task_and_arguments_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'version = 1\nalgorithm = "climber"\niterations = 5\nseed = 4\n'
        '[task]\nname = "point"\nepisode_steps = 9\n[climber]\nstep = 0.1\n[ppo]\n'
    )
    cfg = run_cfg(path, seed=7, climber={"step": 0.2})
    assert (cfg.num_envs, cfg.iterations, cfg.seed) == (8, 5, 7)
    assert cfg.to_dict()["task"]["episode_steps"] == 9
    assert cfg.to_dict()["climber"] == {"step": 0.2}
    for version, said in (("version = 0", "version 0"), ("", "version none")):
        path.write_text(f'{version}\n[task]\nname = "point"\n')
        with pytest.raises(ConfigError, match=rf"mine.toml has {said}; this robo_rl reads version"):
            run_cfg(path)
    path.write_text("version = 1\n")
    with pytest.raises(ConfigError, match=r"mine.toml does not say what to train"):
        run_cfg(path)


def test_a_score_that_does_not_exist_is_found_before_training(
    run_toy: RunToy, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match="score is '-error', but an evaluation gives only position"
    ):
        run_toy(task={"score": "-error"})
    assert not list(tmp_path.glob("point/*")), "a run that never began leaves no folder"


def test_a_run_that_does_not_recover_stops_with_its_checkpoint_intact(
    run_toy: RunToy, tmp_path: Path, capsys: Any
) -> None:
    with pytest.raises(RunError, match="stopped after 5 skipped updates in a row; the last: iter"):
        run_toy(task={"broken_from": 17}, iterations=20)  # in the fourth iteration
    run = Run.open("latest", tmp_path)
    assert load_meta(run.checkpoint("latest"))["iteration"] == 3
    lines = run.metrics()
    assert [line["skipped"] for line in lines] == [0, 0, 0, 1, 1, 1, 1]
    assert lines[3]["reward/reach/distance"] is None
    said = capsys.readouterr().out
    assert "iteration 4: update skipped: reward of reach in environments 0, 1" in said
    assert "reward/reach/distance" in said and "reward/effort" not in said
    state, meta = load(run.path / "faults" / "000004.safetensors")
    assert "reward/reach/distance" in meta["fault"]
    assert state["env"]["count"] == 20 and "learner" in state


def test_a_policy_is_not_judged_while_updates_are_skipped(run_toy: RunToy) -> None:
    run = run_toy(task={"broken_from": 27}, iterations=8)  # in the sixth iteration
    evaluated = {line["iteration"]: line.get("eval/best_score") for line in run.metrics()}
    assert [i for i, best in evaluated.items() if best is not None] == [2, 4]
    assert load(run.checkpoint("latest"))[0]["best"] == evaluated[4]


SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
import toys
toys.register()
step = toys.PointEnv.step
def slow(env, action):
    time.sleep({sleep} if env.num_envs == 8 else 0)
    return step(env, action)
toys.PointEnv.step = slow
from robo_rl.run import train
train("point", algorithm="climber", out={out!r}, iterations=100000, eval_every=100000)
"""


def start(out: Path, sleep: float) -> subprocess.Popen[str]:
    """A run in a process of its own, which has finished its first iteration unless it is slow."""
    script = SCRIPT.format(folder=str(Path(__file__).parent), sleep=sleep, out=str(out))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert "run folder" in process.stdout.readline()
    if not sleep:
        process.stdout.readline()
    return process


def test_sigterm_saves_and_exits_cleanly(tmp_path: Path) -> None:
    process = start(tmp_path, sleep=0.0)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    run = Run.open("latest", tmp_path)
    iteration = load_meta(run.checkpoint("latest"))["iteration"]
    assert f"stopped after iteration {iteration} of 100000; go on with" in out
    assert run.metrics()[-1]["iteration"] == iteration > 0


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, sleep=60.0)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    while "once more to stop at once" not in process.stdout.readline():
        pass
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == -signal.SIGINT
    assert time.monotonic() - began < 2
    process.stdout.close()


def test_a_second_ctrl_c_shows_the_cursor_that_the_panel_hid(
    monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    ended = []
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    monkeypatch.setattr(os, "kill", lambda process, number: ended.append(number))
    with _Stop() as stop:
        stop._handle(signal.SIGINT, None)
        assert (capfd.readouterr().out, ended) == ("", [])
        stop._handle(signal.SIGINT, None)
        assert (capfd.readouterr().out, ended) == ("\x1b[?25h", [signal.SIGINT])


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("seed = 0", "seed = 1", "seed cannot change"),
        ("step = 0.5", "step = 0.1", r"climber\.step cannot change"),
        ("episode_steps = 20", "episode_steps = 21", r"task\.episode_steps cannot change"),
        ("version = 1", "version = 2", "has version 2; this robo_rl reads version 1"),
        ("version = 1", "", "has version none"),
        ("[task]", "[tusk]", "does not say what to train"),
    ],
)
def test_an_edited_configuration_is_not_gone_on_with(
    run_toy: RunToy, old: str, new: str, error: str
) -> None:
    run = run_toy(iterations=2)
    path = run.path / "config.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises((RunError, ConfigError), match=error):
        run_toy(resume=run.path, iterations=3)


def test_a_configuration_may_be_edited_where_it_may_change(run_toy: RunToy) -> None:
    run = run_toy(iterations=2)
    path = run.path / "config.toml"
    path.write_text(path.read_text().replace("iterations = 2", "iterations = 3"))
    assert run_toy(resume=run.path).metrics()[-1]["iteration"] == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('task = "point"', "needs a table .task. with a name, and its task is 'point'"),
        ('[[task]]\nname = "point"', "needs a table .task."),
        ("[task]\nname = 3", "needs a table .task."),
        ('algorithm = 3\n[task]\nname = "point"', "algorithm is 3; the name of a learner"),
        ('algorithm = ["a"]\n[task]\nname = "point"', "algorithm is .'a'."),
        ('name = ["a"]\n[task]\nname = "point"', "name is .* str is accepted"),
        ('climber = 3\n[task]\nname = "point"', r"climber is 3 \(int\); a table is accepted"),
        ('[task]\nname = "point"\n[ppo]\nfoo = 1', r"unknown key ppo\.foo"),
        (f'[task]\nname = "point"\n[climber]\nstep = 1{"0" * 400}', r"climber\.step .* 64 bits"),
        (f'seed = 1{"0" * 5000}\n[task]\nname = "point"', "is not TOML"),
    ],
)
def test_a_file_of_the_wrong_shape_is_an_error_of_its_own(
    tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "x.toml"
    given = "" if "algorithm" in text else 'algorithm = "climber"\n'
    path.write_text(f"version = 1\n{given}{text}\n")
    with pytest.raises(ConfigError, match=error):
        run_cfg(path)
    with pytest.raises(ConfigError, match="task is 'x'"):
        run_cfg("point", "climber", task="x")


UNREAD = """
import sys
sys.path[:0] = [{tests!r}]
import toys
from robo_rl.cli import main
toys.register()
sys.exit(main(["train", "point", "--algorithm", "climber", "--out", {out!r}]))
"""


def test_a_training_whose_output_nobody_reads_goes_on(tmp_path: Path) -> None:
    code = UNREAD.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    assert process.wait(60) == 0
    (ended,) = tmp_path.glob("point/*/report.html")
    assert Run.open(ended.parent).metrics()[-1]["iteration"] == 6


def test_what_closing_says_does_not_replace_what_failed(
    run_toy: RunToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.close", full)
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
    with pytest.raises(RunError, match="No space left on device; make room"):
        run_toy()


def test_a_run_that_could_not_be_created_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        Run.create(run_cfg("point", "climber"), tmp_path)
    assert [*tmp_path.glob("point/*")] == []


def test_a_run_without_one_good_update_says_so(run_toy: RunToy) -> None:
    with pytest.raises(RunError, match=r"no update succeeded .*: iteration 3: update skipped: rew"):
        run_toy(iterations=3, task={"broken_from": 1})


def test_damaged_metrics_are_not_gone_on_with(run_toy: RunToy) -> None:
    run = run_toy(iterations=2)
    path = run.path / "metrics.jsonl"
    path.write_bytes(b"\xff\n" + path.read_bytes())
    with pytest.raises(MetricsError, match=r"metrics.jsonl is damaged: line 1 is b'.xff'"):
        run_toy(resume=run.path, iterations=3)
