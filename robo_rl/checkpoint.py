"""Checkpoints: nested dicts of tensors and JSON scalars in one safetensors file.

A save either replaces the file whole or leaves the one that was there, whatever happens in the
middle of it. Nothing is ever unpickled.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from robo_rl import registry
from robo_rl.api import Env, EnvCfg, EnvSpec, OnlineLearner, Policy
from robo_rl.config import from_dict, override, to_dict

FORMAT = "robo_rl checkpoint"
VERSION = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, read or used here."""


def save(path: str | Path, state: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint and return when it is on the disk.

    Args:
        state: nested dicts, lists and tuples of tensors, strings, numbers, bools and None.
        meta: JSON values that can be read without the tensors (`load_meta`).
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    tree = _pack(state, "", tensors)
    header = {"format": FORMAT, "version": VERSION, "meta": dict(meta), "tree": tree}
    header["digest"] = _digest(header, tensors)
    content = to_bytes(tensors, {key: json.dumps(value) for key, value in header.items()})
    try:
        write(path, content)
    except OSError as error:
        kept = "; the one before it is intact" if path.exists() else ""
        raise CheckpointError(
            f"cannot save {path} ({len(content)} bytes): {error.strerror}{kept}"
        ) from error


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, even after a power cut, finds the old or the new."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state, meta) as they were saved, tensors on the CPU."""
    meta, tree, tensors = _read(Path(path), with_tensors=True)
    with loading(path):
        state: dict[str, Any] = _unpack(tree, tensors)
    return state, meta


@contextlib.contextmanager
def loading(path: str | Path) -> Iterator[None]:
    """Says of a state that fits nothing which file it came from."""
    try:
        yield
    except CheckpointError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not fit what its own configuration makes here: "
            f"{type(error).__name__}: {error}"
        ) from error


def load_meta(path: str | Path) -> dict[str, Any]:
    """The meta of a checkpoint; reads only the head of the file."""
    return _read(Path(path), with_tensors=False)[0]


def load_spec(path: str | Path) -> EnvSpec:
    """What the environment was that a checkpoint was trained in."""
    return _spec(load_meta(path), path)


def load_config(path: str | Path) -> dict[str, Any]:
    """What was trained and how, as `RunCfg.to_dict` gave it."""
    config: dict[str, Any] = _table(load_meta(path), "config", path)
    return config


def load_task(path: str | Path) -> EnvCfg:
    """The task that a checkpoint was trained in, configured as it was then."""
    meta = load_meta(path)
    table = _table(_table(meta, "config", path), "task", path)
    settings = {key: value for key, value in table.items() if key != "name"}
    return override(registry.task(_entry(meta, "task", path)), settings, "task")


def make(path: str | Path, *, num_envs: int = 1, device: str = "cpu", seed: int = 0) -> Env:
    """Environments of a checkpoint's task, if what it is now still fits what was trained."""
    env = load_task(path).build(num_envs=num_envs, device=device, seed=seed)
    check_spec(load_spec(path), env.spec, path)
    return env


def load_policy(
    run_or_checkpoint: str | Path, *, which: str = "best", device: str = "cpu"
) -> Policy:
    """The policy in a checkpoint file, or in a run folder: its best, "latest" or an iteration."""
    path = find(run_or_checkpoint, which)
    state, meta = load(path)
    with loading(path):
        learner = build_learner(meta, path, device=device)
        learner.load_state_dict(_entry(state, "learner", path))
    return learner.policy


def build_learner(meta: Mapping[str, Any], path: str | Path, *, device: str) -> OnlineLearner:
    """A learner as a checkpoint's meta describes it, with fresh weights."""
    algorithm, config = _entry(meta, "algorithm", path), _table(meta, "config", path)
    cfg = from_dict(registry.learner(algorithm), _table(config, algorithm, path), algorithm)
    spec = _spec(meta, path)
    # As many environments as in training: a learner may refuse fewer.
    return cfg.build(spec, num_envs=_entry(config, "num_envs", path), device=device, seed=0)


def find(run_or_checkpoint: str | Path, which: str = "best") -> Path:
    """The checkpoint file meant: a file itself, or one of a run folder's.

    Without a best one (a run that was stopped before its first evaluation) it is the latest.
    """
    path = Path(run_or_checkpoint)
    if path.is_file():
        return path
    folder = path / "checkpoints"
    kept = {file.stem: file for file in sorted(folder.glob("*.safetensors"))}
    if which not in kept and which == "best" and "latest" in kept:
        which = "latest"
    if which not in kept:
        has = f"it has {', '.join(kept)}" if kept else "it has none"
        raise CheckpointError(f"no checkpoint {which!r} in {folder}; {has}")
    return kept[which]


def check_spec(saved: EnvSpec, wanted: EnvSpec, path: str | Path) -> None:
    """Refuse a checkpoint whose task, groups or sizes are not those of the environment.

    What changes neither the meaning nor the size of anything that a network sees may differ:
    noise, gains, limits of speed and torque, ranges of commands, the length of an episode. The
    range of a joint may not: the bounds of its action come from it.
    """
    ours, theirs = _interface(wanted), _interface(saved)
    differing = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    if differing:
        lists = "\n".join(
            f"  {key}\n    checkpoint: {theirs.get(key, 'none')}\n    task: {ours.get(key, 'none')}"
            for key in differing
        )
        raise CheckpointError(
            f"{path} was trained in {saved.name!r} and does not fit {wanted.name!r}:\n{lists}"
        )


def _interface(spec: EnvSpec) -> dict[str, Any]:
    groups = {
        f"observation group {name}": f"{group.size} numbers of {group.history} steps: "
        + ", ".join(
            f"{term.name} ({term.size}, [{term.unit}], {term.frame}, x {term.scale}, +-{term.clip})"
            for term in group.terms
        )
        for name, group in spec.obs.items()
    }
    return {
        "task": spec.name,
        "reward groups": list(spec.heads),
        "costs": list(spec.costs),
        **groups,
        **{f"action {key}": value for key, value in to_dict(spec.action).items()},
        "step_s": spec.step_s,
    }


def _read(path: Path, *, with_tensors: bool) -> tuple[dict[str, Any], Any, dict[str, Tensor]]:
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = _header(file.metadata() or {}, path)
            digest = header.pop("digest", None)
            # A copy: the file's own memory is the disk's page cache.
            keys = file.keys() if with_tensors else ()
            tensors = {key: file.get_tensor(key).clone() for key in keys}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is no whole safetensors file (truncated, or another format): {error}"
        ) from error
    # A file of before there were digests has none.
    if with_tensors and digest is not None and digest != _digest(header, tensors):
        raise CheckpointError(f"{path} is damaged: its content is not what was saved")
    return header["meta"], header["tree"], tensors


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Of all that is saved; the medium may flip a bit that nothing else would notice."""
    digest = hashlib.blake2b(json.dumps(sorted(header.items())).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _header(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    try:
        header = {key: json.loads(value) for key, value in metadata.items()}
    except ValueError:
        header = {}
    if header.get("format") != FORMAT or not {"version", "meta", "tree"} <= header.keys():
        raise CheckpointError(
            f"{path} is a safetensors file but not of this library: its header has "
            f"{sorted(metadata) or 'no metadata'}"
        )
    if not isinstance(header["meta"], dict):
        raise CheckpointError(f"{path} is damaged: its meta is no table")
    if header["version"] != VERSION:
        raise CheckpointError(
            f"{path} is a checkpoint of version {header['version']}; this robo_rl reads version "
            f"{VERSION}: load it with the release that wrote it"
        )
    return header


def _entry(mapping: Mapping[str, Any], key: str, path: str | Path) -> Any:
    if key not in mapping:
        raise CheckpointError(f"{path} holds no {key!r}, only {', '.join(mapping) or 'nothing'}")
    return mapping[key]


def _table(mapping: Mapping[str, Any], key: str, path: str | Path) -> Any:
    table = _entry(mapping, key, path)
    if not isinstance(table, Mapping):
        raise CheckpointError(f"{path} is damaged: its {key} is no table but {table!r}")
    return table


def _spec(meta: Mapping[str, Any], path: str | Path) -> EnvSpec:
    with loading(path):
        return from_dict(EnvSpec, _table(meta, "spec", path))


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Value as JSON, where ["tensor", name] stands for a tensor put aside.

    Lists say their kind first, so that nothing in a state can be taken for a mark.
    """
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return ["tensor", name]
    if isinstance(value, Mapping):
        if other := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"a checkpoint's keys are strings; {name} has {other[0]!r}")
        return {k: _pack(v, f"{name}/{k}" if name else k, tensors) for k, v in value.items()}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [_pack(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint holds tensors and JSON scalars; {name} is a {type(value)}")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        return {key: _unpack(item, tensors) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "tensor":
        return tensors[content]
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
