"""An exported policy's contract: all that a robot's computer must know to run it.

Standard library only, so that it is read where nothing else is installed. It is made from the
environment's `EnvSpec`, as a dict, and from what the exported graph takes and gives.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FORMAT = "robo_rl contract"
VERSION = 1
FILE = "contract.json"

Contract = dict[str, Any]

MEANING = {
    "observation": "clip(scale * quantity, -clip, clip), terms side by side in this order; a group "
    "with history H > 1 is (N, H, size), oldest first, at a start the first observation H times",
    "action": "as the policy gives it; a last_action term observes it unclipped",
    "joint_targets": "reference + scale * clip(action, low, high), the position target [rad] of "
    "each joint's controller, where the reference is action.offset, or if action.reference is "
    "'current' the joint's position now: torque = kp (target - position) - kd velocity, within "
    "torque_limit",
    "memory": "zeros at a start, then what the last call gave",
    "task frame": "origin below the base on the ground, x along the base's heading, z up; it moves "
    "and turns with the base and does not tilt",
    "feet": "front to rear, left before right",
    "units": "SI, radians; quaternions are wxyz",
}


class ContractError(ValueError):
    """A contract that is none, is of another version, or contradicts itself."""


def contract(
    spec: Mapping[str, Any],
    *,
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    **provenance: Any,
) -> Contract:
    """The contract of a policy trained in the environment of a spec.

    Args:
        spec: `EnvSpec` as a dict, from `robo_rl.config.to_dict`.
        inputs, outputs: shape by name of each of the graph's, in order, without the batch.
        provenance: where it comes from: run, commit, versions.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "task": spec["name"],
        "step_s": spec["step_s"],
        "inputs": {name: list(shape) for name, shape in inputs.items()},
        "outputs": {name: list(shape) for name, shape in outputs.items()},
        "observations": {name: _group(group) for name, group in spec["obs"].items()},
        "action": dict(spec["action"]),
        "joints": [dict(joint) for joint in spec["joints"]],
        "commands": [dict(command) for command in spec["commands"]],
        "reward_groups": list(spec["heads"]),
        "costs": list(spec["costs"]),
        "meaning": dict(MEANING),
        "provenance": provenance,
    }


def validate(content: Mapping[str, Any]) -> None:
    """Refuse a contract that cannot be followed, naming everything that is wrong with it."""
    if content.get("format") != FORMAT:
        raise ContractError(f"no contract of this library: its format is {content.get('format')!r}")
    if content.get("version") != VERSION:
        raise ContractError(
            f"a contract of version {content.get('version')!r}; this robo_rl reads version "
            f"{VERSION}: export the run again"
        )
    try:
        problems = list(_problems(content))
    except (KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"the contract is not whole: {error!r}") from error
    if problems:
        raise ContractError("the contract contradicts itself: " + "; ".join(problems))


def unmeasured(content: Mapping[str, Any]) -> list[str]:
    """Terms, as group/term, that the policy reads and no robot can measure."""
    return [
        f"{name}/{term['name']}"
        for name, group in content["observations"].items()
        for term in group["terms"]
        if name in content["inputs"] and not term["measured"]
    ]


def dumps(content: Mapping[str, Any]) -> str:
    """As JSON, every number in full."""
    return json.dumps(content, indent=1, allow_nan=False)


def load(folder: str | Path) -> Contract:
    """The contract of an export, checked, and the files that it names, by their SHA-256."""
    path = Path(folder) / FILE
    try:
        content: Contract = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ContractError(f"{folder} is no export: it has no {FILE}") from error
    except ValueError as error:
        raise ContractError(f"{path} is not JSON: {error}") from error
    validate(content)
    for name, digest in content["files"].items():
        file = path.with_name(name)
        if not file.is_file() or sha256(file) != digest:
            raise ContractError(f"{file} is missing or is not the one that {FILE} was written for")
    return content


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    """An observation group with each term's place in it."""
    start, terms = 0, []
    for term in group["terms"]:
        terms.append({**term, "start": start})
        start += term["size"]
    return {"size": start, "history": group["history"], "terms": terms}


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    action, joints = content["action"], {joint["name"]: joint for joint in content["joints"]}
    num_actions = len(action["joints"])
    for key in ("scale", "offset", "low", "high"):
        if len(action[key]) != num_actions:
            yield f"action.{key} has {len(action[key])} numbers for {num_actions} joints"
    if len(set(action["joints"])) != num_actions:
        yield "a joint is named twice in action.joints"
    if joints and (unknown := [name for name in action["joints"] if name not in joints]):
        yield f"joints has no {', '.join(unknown)}"
    if not all(low < high for low, high in zip(action["low"], action["high"], strict=False)):
        yield "action.low is not below action.high"
    if not content["step_s"] > 0.0:
        yield f"step_s is {content['step_s']}"
    for name, group in content["observations"].items():
        size = sum(term["size"] for term in group["terms"])
        shape = [size] if group["history"] == 1 else [group["history"], size]
        if size != group["size"] or content["inputs"].get(name, shape) != shape:
            yield f"observation group {name} is {shape} by its terms"
    for command in content["commands"]:
        if len({len(command[key]) for key in ("fields", "units", "low", "high")}) != 1:
            yield f"command {command['name']} has lists of different lengths"
    if content["outputs"].get("joint_targets") != [num_actions]:
        yield f"output joint_targets is not [{num_actions}]"
    for path, number in _numbers(content, ""):
        if not math.isfinite(number):
            yield f"{path} is {number}"


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _numbers(item, f"{path}[{i}]")
    elif isinstance(value, float):
        yield path, value
