"""An export is the policy, says all that a robot must know, and replaces nothing by accident."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch

from robo_rl import checkpoint
from robo_rl.algorithms.ppo import PPO, PPOCfg
from robo_rl.api import ActionSpec, Command, EnvSpec, Joint, ObsGroup, ObsTerm
from robo_rl.config import to_dict
from robo_rl.sim2real import contract as contracts
from robo_rl.sim2real import export as exporting
from robo_rl.sim2real.contract import ContractError, contract, unmeasured, validate
from robo_rl.sim2real.export import ExportError, export

Array = npt.NDArray[np.float32]


def joint(name: str, default: float) -> Joint:
    return Joint(
        name=name,
        default=default,
        kp=20.0,
        kd=0.5,
        position=(-1.0, 1.0),
        velocity_limit=30.0,
        torque_limit=23.7,
    )


SPEC = EnvSpec(
    name="toy",
    obs={
        "actor": ObsGroup(
            terms=(
                ObsTerm(name="gravity", size=3, unit="1", frame="base"),
                ObsTerm(name="joint_pos", size=2, unit="rad", frame="", scale=2.0),
            )
        ),
        "past": ObsGroup(
            terms=(ObsTerm(name="gyro", size=3, unit="rad/s", frame="base"),), history=4
        ),
        "critic": ObsGroup(
            terms=(ObsTerm(name="velocity", size=3, unit="m/s", frame="base", measured=False),)
        ),
    },
    action=ActionSpec(
        joints=("hip", "knee"),
        scale=(0.25, 0.5),
        offset=(0.1, -0.2),
        low=(-1.0, -2.0),
        high=(1.0, 0.5),
    ),
    joints=(joint("hip", 0.1), joint("knee", -0.2)),
    commands=(Command(name="base", fields=("forward",), units=("m/s",), low=(-1.0,), high=(1.0,)),),
    heads=("walk",),
    costs=(),
    step_s=0.02,
    max_episode_steps=100,
)


def learner(spec: EnvSpec, **settings: Any) -> PPO:
    """A PPO whose normalisers have seen data and whose actions leave their range now and then."""
    cfg = PPOCfg(num_minibatches=1, actor_hidden=(16,), critic_hidden=(8,), **settings)
    ppo = cfg.build(spec, num_envs=4, device="cpu", seed=0)
    torch.manual_seed(0)
    groups = spec.obs.items()
    shapes = {n: (g.size,) if g.history == 1 else (g.history, g.size) for n, g in groups}
    ppo.actor.input.merge({n: 3.0 + 5.0 * torch.randn(64, *shape) for n, shape in shapes.items()})
    with torch.no_grad():
        for parameter in ppo.actor.mlp.parameters():
            parameter.mul_(4.0)
    return ppo


def saved(folder: Path, ppo: PPO) -> Path:
    """A run folder with one checkpoint."""
    path = folder / "checkpoints" / "latest.safetensors"
    path.parent.mkdir(parents=True)
    meta = {
        "task": "toy",
        "algorithm": "ppo",
        "config": {"num_envs": 4, "ppo": to_dict(ppo.cfg)},
        "spec": to_dict(ppo.spec),
        "iteration": 7,
    }
    checkpoint.save(path, {"learner": ppo.state_dict()}, meta)
    (folder / "run.json").write_text(json.dumps({"command": "robo-rl", "git": [{"commit": "abc"}]}))
    return folder


def runs(folder: Path) -> Callable[[dict[str, Array]], dict[str, Array]]:
    """The exported file as a function of its inputs by name."""
    session = onnxruntime.InferenceSession(folder / "policy.onnx")
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(None, feed), strict=True))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[PPO, Path]:
    folder = tmp_path_factory.mktemp("plain")
    ppo = learner(SPEC)
    export(saved(folder / "run", ppo), folder / "out")
    return ppo, folder / "out"


@pytest.mark.parametrize("num_envs", [1, 7])
def test_the_file_acts_as_the_policy_and_scales_its_action(
    exported: tuple[PPO, Path], num_envs: int
) -> None:
    ppo, folder = exported
    obs = 3.0 + 5.0 * torch.randn(num_envs, 5, generator=torch.Generator().manual_seed(num_envs))
    got = runs(folder)({"actor": obs.numpy()})
    action = ppo.policy.act({"actor": obs}).numpy()
    np.testing.assert_allclose(got["action"], action, rtol=1e-5, atol=1e-6)
    spec = SPEC.action
    assert num_envs == 1 or (action > np.array(spec.high)).any()
    targets = np.array(spec.offset) + np.array(spec.scale) * np.clip(action, spec.low, spec.high)
    np.testing.assert_allclose(got["joint_targets"], targets, rtol=1e-5, atol=1e-6)


def test_the_file_is_one_and_carries_its_contract(exported: tuple[PPO, Path]) -> None:
    _, folder = exported
    assert sorted(path.name for path in folder.iterdir()) == ["contract.json", "policy.onnx"]
    content = contracts.load(folder)
    model = onnx.load(folder / "policy.onnx")
    assert [opset.version for opset in model.opset_import if not opset.domain] == [18]
    inside = json.loads({p.key: p.value for p in model.metadata_props}["robo_rl_contract"])
    assert inside == {key: value for key, value in content.items() if key != "files"}
    assert content["provenance"]["iteration"] == 7
    assert content["provenance"]["commits"] == ["abc"]


def test_memory_history_and_relative_targets_pass_through(tmp_path: Path) -> None:
    spec = replace(SPEC, action=replace(SPEC.action, reference="current"))
    ppo = learner(spec, gru=6, actor_obs=("actor", "past"), frame_features=2)
    written = export(saved(tmp_path / "run", ppo), tmp_path / "out")
    assert written.inputs == {
        "actor": (5,), "past": (4, 3), "memory.gru": (6,), "joint_pos": (2,)
    }  # fmt: skip
    run, policy = runs(tmp_path / "out"), ppo.policy
    generator = torch.Generator().manual_seed(0)
    memory = np.zeros((3, 6), np.float32)
    for _ in range(5):
        actor = torch.randn(3, 5, generator=generator)
        past = torch.randn(3, 4, 3, generator=generator)
        position = torch.randn(3, 2, generator=generator)
        got = run(
            {
                "actor": actor.numpy(),
                "past": past.numpy(),
                "memory.gru": memory,
                "joint_pos": position.numpy(),
            }
        )
        memory = got["next_memory.gru"]
        action = policy.act({"actor": actor, "past": past}).numpy()
        np.testing.assert_allclose(got["action"], action, atol=1e-5)
        clipped = np.clip(action, spec.action.low, spec.action.high)
        targets = position.numpy() + np.array(spec.action.scale) * clipped
        np.testing.assert_allclose(got["joint_targets"], targets, atol=1e-5)


def test_a_file_that_is_not_the_policy_replaces_nothing(
    exported: tuple[PPO, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ppo, _ = exported
    run, out = saved(tmp_path / "run", ppo), tmp_path / "out"
    out.mkdir()
    (out / "contract.json").write_text("the one before")
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(ExportError, match=r"differ by .* in action"):
        export(run, out)
    assert (out / "contract.json").read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", learner(SPEC))
    with pytest.raises(ExportError, match=r"holds checkpoints, run\.json and no contract\.json"):
        export(run, run)
    with pytest.raises(ExportError, match="is a file"):
        export(run, run / "run.json")
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint"):
        export(tmp_path / "nothing", tmp_path / "out")


def test_a_policy_without_a_graph_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Planner:
        memory: dict[str, torch.Tensor] = {}  # noqa: RUF012
        obs_groups = ("actor",)

        def reset(self) -> None: ...
        def graph(self) -> None:
            raise NotImplementedError("it samples")

    monkeypatch.setattr(checkpoint, "load_policy", lambda path: Planner())
    with pytest.raises(ExportError, match="Planner is no pure function to export: it samples"):
        export(saved(tmp_path / "run", learner(SPEC)), tmp_path / "out")


def of_spec(**changes: Any) -> contracts.Contract:
    """The contract of a policy that reads the actor's group, with some of its entries replaced."""
    outputs = {"action": (2,), "joint_targets": (2,)}
    content = contract(to_dict(SPEC), inputs={"actor": (5,)}, outputs=outputs)
    return {**content, **changes}


def test_a_contract_says_where_each_term_is_in_full_precision() -> None:
    content = json.loads(contracts.dumps(of_spec()))
    validate(content)
    terms = content["observations"]["actor"]["terms"]
    assert [(term["name"], term["start"]) for term in terms] == [("gravity", 0), ("joint_pos", 3)]
    assert content["observations"]["past"]["history"] == 4
    assert content["joints"][0] == to_dict(SPEC.joints[0])
    assert content["action"]["scale"] == [0.25, 0.5]
    assert content["commands"][0]["units"] == ["m/s"]


def test_terms_that_no_robot_measures_are_named_if_the_policy_reads_them() -> None:
    assert unmeasured(of_spec()) == []
    assert unmeasured(of_spec(inputs={"critic": [3]})) == ["critic/velocity"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "mine"}, "its format is 'mine'"),
        ({"version": 0}, "version 0; this robo_rl reads version 1"),
        ({"joints": [{"name": "hip"}]}, "joints has no knee"),
        ({"inputs": {"actor": [4]}}, r"observation group actor is \[5\] by its terms"),
        ({"outputs": {}}, r"joint_targets is not \[2\]"),
        ({"step_s": float("inf")}, "step_s is inf"),
        ({"action": {"joints": ["hip"]}}, "not whole"),
    ],
)
def test_a_contract_that_cannot_be_followed_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        validate(of_spec(**changes))


def test_a_changed_file_is_found_out(exported: tuple[PPO, Path], tmp_path: Path) -> None:
    _, folder = exported
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    contracts.load(tmp_path)
    with (tmp_path / "policy.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ContractError, match=r"policy\.onnx is missing or is not the one"):
        contracts.load(tmp_path)
    with pytest.raises(ContractError, match="is no export"):
        contracts.load(tmp_path / "elsewhere")
