"""A policy as one ONNX file with its contract, checked against torch before it is handed over."""

import copy
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robo_rl import __version__, checkpoint
from robo_rl.api import ActionSpec, EnvSpec, Policy
from robo_rl.config import to_dict
from robo_rl.sim2real.contract import FILE, Contract, contract, dumps, sha256, unmeasured, validate

MODEL = "policy.onnx"
METADATA = "robo_rl_contract"
"""Key of the contract in the model's metadata, there without the files' digests."""
OPSET = 18
CHECKS = 1000
"""Random inputs on which onnxruntime and torch must agree."""
TOLERANCE = 1e-5
"""Of an output's largest magnitude, or of 1 where that is smaller."""


class ExportError(RuntimeError):
    """A policy that cannot be exported, or an export that is not the policy."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written.

    Attributes:
        error: the largest difference between onnxruntime and torch, scaled as `TOLERANCE`.
        unmeasured: observation terms that the policy reads and no robot can measure.
    """

    folder: Path
    error: float
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    unmeasured: tuple[str, ...]


class Deployed(nn.Module):
    """(*groups, *memory[, joint_pos]) -> (action, joint_targets, *memory), each (N, ...).

    joint_pos (N, A) [rad] is read where targets are relative to the joints' positions now.
    """

    scale: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, network: nn.Module, action: ActionSpec) -> None:
        super().__init__()
        self.network = network
        self.relative = action.reference == "current"
        for name in ("scale", "offset", "low", "high"):
            self.register_buffer(name, torch.tensor(getattr(action, name)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        reference = inputs[-1] if self.relative else self.offset
        action, *memory = self.network(*(inputs[:-1] if self.relative else inputs))
        clipped = torch.minimum(torch.maximum(action, self.low), self.high)
        return action, reference + self.scale * clipped, *memory


def export(run: str | Path, out: str | Path) -> Export:
    """Write the best policy of a run folder, or that of a checkpoint file, to a folder.

    An export that is there is replaced, file by file, once the new one has passed its check.
    """
    path, out = checkpoint.find(run), Path(out)
    _check_folder(out)
    spec, policy = checkpoint.load_spec(path), checkpoint.load_policy(path)
    module, inputs, outputs = _module(spec, policy)
    content = contract(to_dict(spec), inputs=inputs, outputs=outputs, **_provenance(path))
    validate(content)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        model = Path(folder) / MODEL
        _write(module, content, model)
        error = _compare(module, inputs, model)
        content["files"] = {MODEL: sha256(model)}
        (Path(folder) / FILE).write_text(dumps(content) + "\n", encoding="utf-8")
        out.mkdir(exist_ok=True)
        for name in (MODEL, FILE):
            os.replace(Path(folder) / name, out / name)
    return Export(
        folder=out,
        error=error,
        inputs=inputs,
        outputs=outputs,
        unmeasured=tuple(unmeasured(content)),
    )


Shapes = dict[str, tuple[int, ...]]


def _module(spec: EnvSpec, policy: Policy) -> tuple[Deployed, Shapes, Shapes]:
    """The graph to export, and the shapes of its inputs and outputs by name."""
    policy.reset()
    memory = {name: tuple(value.shape[1:]) for name, value in policy.memory.items()}
    inputs: Shapes = {}
    for name in policy.obs_groups:
        group = spec.obs[name]
        inputs[name] = (group.size,) if group.history == 1 else (group.history, group.size)
    inputs |= {f"memory.{name}": shape for name, shape in memory.items()}
    num_actions = len(spec.action.joints)
    if spec.action.reference == "current":
        inputs["joint_pos"] = (num_actions,)
    outputs: Shapes = {"action": (num_actions,), "joint_targets": (num_actions,)}
    outputs |= {f"next_memory.{name}": shape for name, shape in memory.items()}
    try:
        graph = copy.deepcopy(policy.graph()).cpu()
    except NotImplementedError as error:
        raise ExportError(
            f"{type(policy).__name__} is no pure function to export: {error}"
        ) from error
    return Deployed(graph, spec.action).eval(), inputs, outputs


def _write(module: Deployed, content: Contract, path: Path) -> None:
    import onnx

    example = _draw(content["inputs"], 2, torch.Generator().manual_seed(0))
    batch = torch.export.Dim("N", min=1)
    # It tells of operators that torchvision would add.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, of its own insides
        program = torch.onnx.export(
            module,
            tuple(example),
            input_names=list(content["inputs"]),
            output_names=list(content["outputs"]),
            dynamic_shapes=(tuple({0: batch} for _ in example),),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {METADATA: dumps(content)})
    onnx.checker.check_model(model)
    onnx.save(model, path)


@torch.no_grad()
def _compare(module: Deployed, inputs: Shapes, path: Path) -> float:
    """The largest scaled difference over random inputs; refuses one above the tolerance."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    drawn = _draw(inputs, CHECKS, torch.Generator().manual_seed(1))
    worst = 0.0
    for rows in (slice(0, 1), slice(None)):
        given = [value[rows] for value in drawn]
        wanted = module(*given)
        feed = {name: value.numpy() for name, value in zip(inputs, given, strict=True)}
        for output, got, want in zip(
            session.get_outputs(), session.run(None, feed), wanted, strict=True
        ):
            error = (torch.from_numpy(got) - want).abs().max() / want.abs().max().clamp(min=1.0)
            # Also where the difference is not a number.
            if not error <= TOLERANCE:
                raise ExportError(
                    f"onnxruntime and torch differ by {error:.1e} in {output.name}, over "
                    f"{TOLERANCE:.0e}; nothing was written"
                )
            worst = max(worst, float(error))
    return worst


def _draw(
    inputs: Mapping[str, Sequence[int]], num: int, generator: torch.Generator
) -> list[Tensor]:
    """Random inputs (num, ...), each row of its own magnitude, 0.1 to 10."""
    size = 10.0 ** (2.0 * torch.rand(num, generator=generator) - 1.0)
    return [
        torch.randn(num, *shape, generator=generator) * size.view(num, *(1,) * len(shape))
        for shape in inputs.values()
    ]


def _check_folder(out: Path) -> None:
    """Refuse a folder whose content would be mixed with an export's."""
    for path in (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise ExportError(f"{path} is a file; name a new or empty folder")
    others = [path.name for path in out.iterdir()] if out.is_dir() else []
    if others and FILE not in others:
        raise ExportError(
            f"{out} holds {', '.join(sorted(others)[:3])} and no {FILE}; name a new or empty "
            "folder, or one that an export made"
        )


def _provenance(path: Path) -> dict[str, Any]:
    """Where a checkpoint comes from, as far as its run folder tells."""
    meta = checkpoint.load_meta(path)
    run = path.parent.parent
    origin: dict[str, Any] = {}
    if (run / "run.json").is_file():
        try:
            origin = json.loads((run / "run.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ExportError(f"{run / 'run.json'} is damaged: {error}; delete it") from error
    return {
        "robo_rl": __version__,
        "torch": torch.__version__,
        "checkpoint": path.name,
        "checkpoint_sha256": sha256(path),
        "algorithm": meta["algorithm"],
        "iteration": meta["iteration"],
        "command": origin.get("command"),
        "commits": [tree.get("commit") for tree in origin.get("git") or []],
    }
