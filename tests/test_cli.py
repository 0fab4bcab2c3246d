"""The commands: what they print, write and refuse, and how soon they answer."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robo_rl import cli, doctor
from robo_rl.checkpoint import CheckpointError
from robo_rl.cli import main
from robo_rl.config import ConfigError, load_toml
from robo_rl.run import Run, RunError, invocation
from robo_rl.sim2real.contract import ContractError
from robo_rl.tasks import viewer
from robo_rl.tasks.loco_manip import tracking

SMALL = (
    *("--num-envs", "4", "--iterations", "1", "--task.episode-length-s", "0.4"),
    *("--ppo.num-steps", "4", "--ppo.num-minibatches", "1", "--ppo.actor-hidden", "8"),
)
"""A training of a second."""


def seconds(code: Sequence[str]) -> float:
    """Processor time of the quickest of three processes: what else runs here does not count."""
    times = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, *code], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        times.append(used.ru_utime + used.ru_stime)
    return min(times)


def test_help_answers_at_once() -> None:
    assert seconds(["-m", "robo_rl", "--help"]) < 0.5


def test_the_package_is_imported_at_once() -> None:
    bare = seconds(["-c", "pass"])
    assert seconds(["-c", "import robo_rl"]) - bare < 0.1


@pytest.mark.parametrize("set_to", [None, "ACTIVE"])
def test_importing_the_package_lets_openmp_wait_and_loads_no_torch(set_to: str | None) -> None:
    code = "import os, sys, robo_rl; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    env |= {"OMP_WAIT_POLICY": set_to} if set_to else {}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.stdout.split() == [set_to or "PASSIVE", "False"]


def test_commands_load_torch_and_simulators_only_when_needed() -> None:
    code = "import sys, robo_rl.cli; print([m for m in ('torch', 'mujoco') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run folder, and what its training printed last."""
    out = tmp_path_factory.mktemp("runs")

    def no_gl(*arguments: Any, **settings: Any) -> None:
        raise viewer.NoGLError("tried nothing")

    script = out / "a b" / "robo-rl"
    script.parent.mkdir()
    script.touch()

    with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as printing:
        said: list[str] = []
        patch.setattr(viewer, "record", no_gl)
        patch.setattr(sys, "argv", [str(script)])
        printing.setattr("builtins.print", lambda *words, **_: said.append(" ".join(words)))
        weight = "--task.rewards.locomotion.track-lin-vel.weight"
        assert main(["train", "go2-velocity", *SMALL, "--out", str(out), weight, "2.5"]) == 0
    (config,) = out.glob("*/*/config.toml")
    return config.parent, "\n".join(said)


def test_training_ends_with_what_to_type_next(trained: tuple[Path, str]) -> None:
    folder, said = trained
    assert "apt-get install libosmesa6" in said
    assert "config.toml, eval.json" in said
    script = folder.parent.parent / "a b" / "robo-rl"
    lines = [line for line in said.splitlines() if line.startswith(f"'{script}' ")]
    assert [shlex.split(line)[1:] for line in lines] == [
        ["play", str(folder)],
        ["eval", str(folder)],  # without a suite: this task has no end-effector
        ["export", str(folder), "--out", f"{folder}/export"],
    ]


def test_what_to_type_begins_as_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "robo-rl"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "train"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invocation() == "robo-rl"
    monkeypatch.setenv("PATH", "")
    assert invocation() == str(script)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "__main__.py")])
    assert invocation() == f"{sys.executable} -m robo_rl"


@pytest.mark.parametrize("error", [OSError("no ffmpeg"), RuntimeError("no ffmpeg")])
def test_a_video_that_fails_leaves_a_training_well(
    trained: tuple[Path, str], error: Exception, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def record(*arguments: Any, **settings: Any) -> None:
        raise error

    monkeypatch.setattr(viewer, "record", record)
    cli._finish(Run.open(trained[0]))
    said = capsys.readouterr().out
    assert f"export {trained[0]}" in said and said.endswith("no video: no ffmpeg\n")


def test_the_suite_is_advised_where_there_is_an_end_effector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(viewer, "record", lambda *arguments, **settings: None)
    assert main(["train", "go2_arx5-twist", *SMALL, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if " eval " in line]
    assert line.endswith(" --suite tracking")
    assert said.endswith("video.mp4\n")


def test_flags_reach_the_run(trained: tuple[Path, str]) -> None:
    table = load_toml(trained[0] / "config.toml")
    assert table["task"]["rewards"]["locomotion"]["track_lin_vel"]["weight"] == 2.5
    assert (table["num_envs"], table["ppo"]["actor_hidden"]) == (4, [8])


def test_a_run_goes_on_and_keeps_its_configuration(
    trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained[0]
    monkeypatch.setattr(cli, "_finish", lambda run: None)
    resume = ["train", "go2-velocity", "--resume", str(folder)]
    assert main([*resume, "--iterations", "2"]) == 0
    assert load_toml(folder / "config.toml")["iterations"] == 2
    assert main([*resume, "--iterations", "3", "--num-envs", "8"]) == 1
    assert "num_envs cannot change" in capsys.readouterr().err
    assert main([*resume, "--iterations", "3", "--algorithm", "distill"]) == 2
    assert "this run is of 'ppo', not 'distill'" in capsys.readouterr().err


def test_an_evaluation_is_printed_and_written(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new/out.json"
    assert main(["eval", str(trained[0]), "--num-envs", "2", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert result["num_envs"] == 2
    assert 0.0 <= result["fall"] <= 1.0
    assert "m/s" in next(
        line for line in capsys.readouterr().out.splitlines() if "base_velocity" in line
    )


def test_the_suite_is_given_the_policy_and_its_task(
    trained: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Result:
        def table(self) -> str:
            return "the table"

        def to_dict(self) -> dict[str, Any]:
            return {"rows": []}

    def suite(policy: Any, task: Any, **settings: Any) -> Result:
        assert task.rewards["locomotion"]["track_lin_vel"].weight == 2.5
        assert settings == {
            "num_envs": 32,
            "quick": True,
            "seed": 0,
            "out": trained[0] / "tracking",
        }
        return Result()

    monkeypatch.setattr(tracking, "tracking", suite)
    path = tmp_path / "out.json"
    command = ["eval", str(trained[0]), "--suite", "tracking", "--quick", "--json", str(path)]
    assert main(command) == 0
    assert "the table" in capsys.readouterr().out
    assert json.loads(path.read_text()) == {"run": str(trained[0]), "rows": []}
    assert (trained[0] / "tracking/tracking.json").read_text() == path.read_text()


@pytest.mark.skipif(not viewer.renderers(), reason="no OpenGL library to draw with")
@pytest.mark.parametrize("policy", ["trained", "zero", "random"])
def test_a_policy_is_drawn(trained: tuple[Path, str], tmp_path: Path, policy: str) -> None:
    run = (
        str(trained[0] / "checkpoints/latest.safetensors")
        if policy == "trained"
        else "go2-velocity"
    )
    path = tmp_path / "video.gif"
    command = ["play", run, "--policy", policy, "--video", str(path), "--seconds", "0.1"]
    assert main(command) == 0
    assert path.stat().st_size > 0


def test_an_export_and_a_report_are_written(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trained[0]), "--out", str(tmp_path / "export")]) == 0
    said = capsys.readouterr().out
    assert "joint_targets: N x 12" in said
    assert "differ by at most" in said
    assert main(["report", str(trained[0]), "--out", str(tmp_path / "report.html")]) == 0
    assert "<html" in (tmp_path / "report.html").read_text()


def test_what_there_is_is_listed(
    trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "RUNS", trained[0].parent.parent)
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert {"go2-velocity", "quick", "ppo"} <= set(said.split())
    evaluation = json.loads((trained[0] / "eval.json").read_text())
    score = evaluation["score"].removeprefix("-")
    assert f"{trained[0]}  {score} {evaluation['scores'][score]:.4g}\n" in said


def test_a_benchmark_prints_and_writes_flat_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"task": "x", "env_to_bare_ratio": 0.81234}
    monkeypatch.setattr("robo_rl.tasks.bench.throughput", lambda task, *, num_envs: numbers)
    assert main(["bench", "throughput", "--json", str(tmp_path / "out.json")]) == 0
    assert "env_to_bare_ratio  0.81234" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text()) == numbers


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("trian", "did you mean 'train'?"),
        ("train go2_arx5-twits", "did you mean 'go2_arx5-twist'?"),
        ("train go2-velocity --algorithm pp", "no learner 'pp', only distill, ppo"),
        ("train go2-velocity --num-env 4", "--num-envs INT"),
        ("train --num-envs 4", "robo-rl train TARGET --num-envs ..."),
        ("train go2-velocity --num-envs 0", "num_envs is 0; it must be at least 1"),
        ("train go2-velocity --ppo.gamma 2", "ppo: gamma is 2.0"),
        ("train nothing.toml", "cannot read nothing.toml"),
        ("play go2-velocity", "is not a run; train it first"),
        ("play pretrained:x", "no pretrained policy 'x', only none"),
        ("play latest --polcy zero", "--policy {trained,zero,random}"),
        ("play latest --policy zeor", "invalid choice 'zeor'"),
        ("eval latest --suite trackng", "invalid choice 'trackng'"),
        ("bench througput", "did you mean 'throughput'?"),
        ("report", "robo-rl report RUN [RUN ...]"),
    ],
)
def test_what_is_mistyped_is_an_error_of_one_message(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("eval nowhere", "nowhere is no run folder"),
        ("play latest", "no run in runs/* has a checkpoint"),
        ("report nowhere", "nowhere is no run folder"),
    ],
)
def test_a_run_that_is_not_there_is_said_so(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 1
    assert capsys.readouterr().err.startswith(f"robo-rl: {said}")


@pytest.mark.parametrize(
    ("code", "bug"),
    [
        ("raise RuntimeError('it')", RuntimeError),
        ("torch.zeros(2) @ torch.zeros(3)", RuntimeError),
        ("torch.Generator().set_state(torch.zeros(1))", TypeError),
        ("np.zeros(2) + np.zeros(3)", ValueError),
        ("np.concatenate([])", ValueError),
        ("list(zip([1], [], strict=True))", ValueError),
        ("torch.distributions.Normal(0.0, -1.0)", ValueError),
    ],
)
def test_a_bug_keeps_its_traceback(
    code: str, bug: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        exec(code, {"__name__": "robo_rl.somewhere", "np": np, "torch": torch})

    monkeypatch.setitem(cli.COMMANDS, "doctor", broken)
    with pytest.raises(bug):
        main(["doctor"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("it"), 2),
        (ValueError("it"), 2),
        (CheckpointError("it"), 1),
        (ContractError("it"), 1),
        (RunError("it"), 1),
        (NotImplementedError("it"), 1),
        (FileNotFoundError("it"), 1),
    ],
)
def test_an_error_for_the_user_is_one_message(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refuses() -> None:
        exec("raise error", {"__name__": "robo_rl.somewhere", "error": error})

    monkeypatch.setitem(cli.COMMANDS, "doctor", refuses)
    assert main(["doctor"]) == code
    assert capsys.readouterr().err == "robo-rl: it\n"


def test_a_variable_shows_every_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBO_RL_DEBUG", "1")
    with pytest.raises(ValueError, match="did you mean 'train'"):
        main(["trian"])


def test_the_doctor_finds_this_machine_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok    simulation: ") and "steps/s" in line for line in lines)
    assert not any(line.startswith("FAIL") for line in lines)


def test_the_doctor_says_what_to_type_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    there = metadata.version

    def version(name: str) -> str:
        if name == "onnx":
            raise metadata.PackageNotFoundError
        return "2.1.0" if name == "torch" else there(name)

    monkeypatch.setattr(metadata, "version", version)
    found = {check.name: check for check in doctor._packages()}
    assert not found["torch"].ok and found["torch"].required
    assert found["torch"].fix.endswith("-m pip install 'torch>=2.11'")
    assert not found["onnx"].ok and not found["onnx"].required
    assert found["onnx"].found == "not installed (for export)"
    assert found["numpy"].ok
    renderers = doctor._renderers(())
    assert not renderers.ok and "apt-get install libosmesa6" in renderers.fix


def test_a_damaged_run_is_listed_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "RUNS", tmp_path)
    good = '{"score": "-error", "scores": {"error": 0.25}}'
    task = "[task]\nname = 'x'"
    files = {"a": ("", good), "b": (task, "{}"), "c": (task, "{"), "d": (task, good)}
    for name, (config, evaluation) in files.items():
        folder = tmp_path / "x" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(config)
        (folder / "eval.json").write_text(evaluation)
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "a  damaged: its config.toml names no task\n" in said
    assert said.count("damaged: eval.json holds no score\n") == 2
    assert "d  error 0.25\n" in said


def test_no_environments_and_no_seconds_are_refused(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(trained[0])
    assert main(["eval", folder, "--num-envs", "0"]) == 2
    assert "num_envs is 0" in capsys.readouterr().err
    for seconds in ("0", "nan", "inf"):
        video = str(tmp_path / "a.mp4")
        assert main(["play", folder, "--video", video, "--seconds", seconds]) == 2
        assert "its length must be finite and above 0" in capsys.readouterr().err
    file = tmp_path / "file"
    file.touch()
    assert main(["export", folder, "--out", str(file / "sub")]) == 1
    assert f"{file} is a file" in capsys.readouterr().err
