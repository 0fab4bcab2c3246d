import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from robo_rl.api import EnvSpec
from robo_rl.checkpoint import (
    CheckpointError,
    check_spec,
    find,
    load,
    load_meta,
    load_policy,
    save,
)
from robo_rl.run import Run


@pytest.fixture
def spec(toys: ModuleType) -> EnvSpec:
    made: EnvSpec = toys.PointTask().build(num_envs=1, device="cpu", seed=0).spec
    return made


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    state: dict[str, Any] = {
        "net": {"0.weight": shared[:4].view(2, 2).T, "alias": shared, "empty": torch.zeros(0, 3)},
        "optimiser": {"groups": [{"betas": (0.9, 1)}]},
        "flags": torch.tensor([True, False]),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "generator": torch.Generator().manual_seed(3).get_state(),
        "scalars": [1, 2.5, float("-inf"), "text", True, None, ["tensor", "net/alias"]],
        "big": 2**127,
        "nothing": {},
    }  # fmt: skip
    path = tmp_path / "a.safetensors"
    save(path, state, {"iteration": 7, "list": [1, {"a": None}]})
    got, meta = load(path)
    assert meta == {"iteration": 7, "list": [1, {"a": None}]} == load_meta(path)
    assert got["scalars"] == state["scalars"]
    assert (got["big"], got["nothing"]) == (2**127, {})
    assert got["optimiser"]["groups"] == [{"betas": (0.9, 1)}]
    pairs = [(got[k], state[k]) for k in ("flags", "half", "generator")]
    pairs += [(got["net"][k], state["net"][k]) for k in state["net"]]
    for new, old in pairs:
        assert new.dtype == old.dtype and new.shape == old.shape and torch.equal(new, old)


def test_what_a_checkpoint_cannot_hold_is_refused_where_it_lies(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a/1/b is a .*set"):
        save(tmp_path / "a.safetensors", {"a": [0, {"b": set()}]}, {})
    with pytest.raises(TypeError, match="keys are strings; a/1 has 7"):
        save(tmp_path / "a.safetensors", {"a": [0, {7: True}]}, {})
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest.safetensors"
    save(path, {"x": torch.zeros(10)}, {"iteration": 1})

    def saving_fails_with(reason: str) -> None:
        with pytest.raises(CheckpointError, match=f"cannot save .*{reason}; the one before"):
            save(path, {"x": torch.zeros(10**6)}, {"iteration": 2})
        assert load_meta(path)["iteration"] == 1
        assert [file.name for file in tmp_path.iterdir()] == ["latest.safetensors"]

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        saving_fails_with("File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    saving_fails_with("No space left on device")


KILLS = """
import os, random, signal, sys, time, torch
from pathlib import Path
from robo_rl.checkpoint import load, save

torch.set_num_threads(1)  # a forked child has no worker threads
path = Path(sys.argv[1]) / "latest.safetensors"
temporary = path.with_name(".latest.safetensors.new")
random.seed(0)

def state(count):
    return {str(i): torch.full((300_000,), float(count)) for i in range(8)}

save(path, state(0), {"iteration": 0})
torn = iteration = 0
for _ in range(20):
    reader, writer = os.pipe()
    temporary.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        for count in range(iteration + 1, 10**6):
            save(path, state(count), {"iteration": count})
            os.write(writer, count.to_bytes(4, "little"))
    os.close(writer)
    time.sleep(random.uniform(0.0, 0.1))
    while not temporary.exists():
        pass
    time.sleep(random.uniform(0.0, 0.005))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    done = os.read(reader, 1 << 20)
    os.close(reader)
    reported = int.from_bytes(done[-4:], "little") if done else iteration
    got, meta = load(path)
    iteration = meta["iteration"]
    assert iteration >= reported, (iteration, reported)
    assert all((tensor == iteration).all() for tensor in got.values()), iteration
    torn += temporary.exists()
print(torn, iteration)
"""


def test_kill_9_in_the_middle_of_a_save_loses_no_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLS, str(tmp_path)]
    torn, saves = map(int, subprocess.run(command, check=True, capture_output=True).stdout.split())
    assert torn >= 10, "kills came in the middle of a save"
    assert saves > 0


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path, cut = tmp_path / "a.safetensors", tmp_path / "cut.safetensors"
    save(path, {"x": torch.zeros(1000)}, {})
    content = path.read_bytes()
    for length in (0, 4, 20, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut.safetensors is no whole safetensors file"):
            load(cut)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.kill, (os.getpid(), signal.SIGKILL)


def test_foreign_files_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for content in (b"garbage" * 100, pickle.dumps(Bomb())):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="no whole safetensors file"):
            load(path)
    for metadata in (None, {"format": "pt"}, {"format": '"robo_rl checkpoint"'}):
        save_file({"x": torch.zeros(3)}, path, metadata)
        with pytest.raises(CheckpointError, match="not of this library"):
            load(path)
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*none"):
        load(tmp_path / "none")


def test_another_version_is_refused_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    monkeypatch.setattr("robo_rl.checkpoint.VERSION", 0)
    save(path, {}, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="of version 0; this robo_rl reads version 1"):
        load(path)


def test_what_differs_from_the_task_is_named_in_both_lists(spec: EnvSpec) -> None:
    group = spec.obs["actor"]
    wider = replace(group, terms=(replace(group.terms[0], size=3),))
    noisy = replace(group, terms=(replace(group.terms[0], noise=0.5),))
    changes: dict[str, dict[str, Any]] = {
        r"reward groups\s+checkpoint: \['reach'\]\s+task: \['reach', 'effort'\]": {
            "heads": ("reach",)
        },
        r"group actor\s+checkpoint: 3 numbers of 1 steps: position \(3.*\s+task: 2 numbers": {
            "obs": {"actor": wider}
        },
        r"critic\s+checkpoint: .*position.*\s+task: none": {
            "obs": {"actor": group, "critic": group}
        },
        r"trained in 'line'.*fit 'point'.*\s+task\s+checkpoint: line\s+task: point": {
            "name": "line"
        },
        r"action scale\s+checkpoint: \[0\.5\]\s+task: \[1\.0\]": {
            "action": replace(spec.action, scale=(0.5,))
        },
    }
    for said, change in changes.items():
        with pytest.raises(CheckpointError, match=said):
            check_spec(replace(spec, **change), spec, "a.safetensors")
    check_spec(replace(spec, obs={"actor": noisy}, max_episode_steps=5), spec, "a.safetensors")


def test_a_policy_is_loaded_from_a_run_or_a_file(run_toy: Callable[..., Run]) -> None:
    run = run_toy()
    obs = {"actor": torch.tensor([[0.5, 0.0], [-1.0, 0.0]])}
    best = load_policy(run.path)
    assert torch.equal(best.act(obs), load_policy(run.checkpoint("best")).act(obs))
    state, _ = load(run.checkpoint("000003"))
    kept = run.policy("000003").act(obs)
    assert torch.equal(kept, -state["learner"]["tried"] * obs["actor"][:, :1])
    with pytest.raises(CheckpointError, match=r"no checkpoint '000004' .* it has 000003, 000006"):
        run.policy("000004")
    run.checkpoint("best").unlink()
    assert find(run.path) == run.checkpoint("latest")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(path, {"x": torch.arange(1000.0), "note": "abcdefgh"}, {"iteration": 1})
    whole = path.read_bytes()
    for at in (8, whole.index(b"abcdefgh"), whole.index(b"iteration"), len(whole) - 5):
        content = bytearray(whole)
        content[at] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            load(path)


def test_a_meta_that_disagrees_with_the_weights_is_refused(
    run_toy: Callable[..., Run], tmp_path: Path
) -> None:
    path = run_toy(iterations=2).checkpoint("best")
    state, meta = load(path)
    learner = {key: value for key, value in state["learner"].items() if key != "gain"}
    wrong: list[tuple[dict[str, Any], Any]] = [
        ({"learner": learner}, meta),
        ({"learner": state["learner"] | {"gain": torch.zeros(3)}}, meta),
        (state, meta | {"config": 3}),
        (state, meta | {"spec": [1]}),
        (state, meta | {"spec": meta["spec"] | {"action": 3}}),
        (state, meta | {"algorithm": 3}),
    ]
    other = tmp_path / "other.safetensors"
    for content, said in wrong:
        save(other, content, said)
        with pytest.raises(CheckpointError, match=r"other\.safetensors"):
            load_policy(other)
