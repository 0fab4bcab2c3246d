"""What this machine has of what the library uses, and how to get what is missing."""

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    """A line to type, where it is not ok."""
    required: bool = False
    """Whether nothing works without it."""


def checks(renderers: Sequence[str]) -> Iterator[Check]:
    """All checks, the quick ones first.

    Args:
        renderers: what MuJoCo can draw offscreen with here.
    """
    yield _python()
    yield from _packages()
    yield _cpu()
    yield _gpu()
    yield _renderers(renderers)
    yield _display()
    yield _disk()
    yield _simulation()


def _python() -> Check:
    return Check(
        name="python",
        ok=(3, 11) <= sys.version_info < (3, 14),
        found=f"{platform.python_version()} at {sys.executable}",
        fix="make PYTHON=/path/to/python3.12 train",
        required=True,
    )


def _packages() -> Iterator[Check]:
    """Every dependency that the package declares, the extras' too."""
    from packaging.requirements import Requirement

    for line in metadata.requires("robo-rl") or ():
        requirement = Requirement(line)
        extra = str(requirement.marker).partition('extra == "')[2].rstrip('"')
        if requirement.name == "robo-rl" or extra == "dev":
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = None
        needed = f"{requirement.name}{requirement.specifier}"
        yield Check(
            name=requirement.name,
            ok=version is not None and version in requirement.specifier,
            found=f"{version or 'not installed'}{f' (for {extra})' if extra else ''}",
            fix=f"{sys.executable} -m pip install '{needed}'",
            required=not extra,
        )


def _cpu() -> Check:
    import torch

    waiting = os.environ.get("OMP_WAIT_POLICY", "not set")
    return Check(
        name="cpu",
        ok=waiting.upper() == "PASSIVE",
        found=f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads, OpenMP waits "
        f"{waiting.lower()}",
        fix="export OMP_WAIT_POLICY=PASSIVE  # spinning threads slow learning several times",
    )


def _gpu() -> Check:
    import torch

    there = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if there else "none; everything runs on the CPU"
    return Check(name="gpu", ok=True, found=name)


def _renderers(names: Sequence[str]) -> Check:
    return Check(
        name="offscreen rendering",
        ok=bool(names),
        found=", ".join(names) or "none: robo-rl play works in the browser, --video does not",
        fix="apt-get install libosmesa6  # or: libegl1 libgl1-mesa-dri",
    )


def _display() -> Check:
    there = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    return Check(name="display", ok=True, found=there or "none; robo-rl play opens in the browser")


def _disk() -> Check:
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()) as file:
            file.write(b"robo_rl")
    except OSError as error:
        return Check(
            name="disk",
            ok=False,
            found=f"{Path.cwd()}: {error.strerror}",
            fix="robo-rl train TARGET --out /another/folder",
        )
    return Check(name="disk", ok=True, found=f"{Path.cwd()} is writable")


def _simulation() -> Check:
    """A second of a robot's life, sixteen times."""
    import torch

    from robo_rl import registry

    num_envs = 16
    try:
        env = registry.make("go2-velocity", num_envs=num_envs)
        actions = torch.zeros(num_envs, len(env.spec.action.joints))
        steps = round(1.0 / env.spec.step_s)
        began = time.perf_counter()
        for _ in range(steps):
            step = env.step(actions)
        rate = steps * num_envs / (time.perf_counter() - began)
        env.close()
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        return Check(
            name="simulation",
            ok=False,
            found=f"{type(error).__name__}: {error}",
            fix=f"{sys.executable} -m pip install 'mujoco>=4.0'",
        )
    finite = all(bool(obs.isfinite().all()) for obs in step.obs.values())
    return Check(
        name="simulation",
        ok=finite,
        found=f"{rate:,.0f} steps/s of go2-velocity" if finite else "not finite after a second",
        fix="ROBO_RL_DEBUG=1 robo-rl play go2-velocity --policy zero",
    )
