"""The doors between the rooms are closed: a seeded import breaks the contract that forbids it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("robo_rl", "tasks", "offline", "sim2real", "configs")
LINT = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"


def broken_contracts(root: Path) -> list[str]:
    """Names of the contracts that import-linter finds broken in a tree."""
    wide = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    code = [sys.executable, "-c", LINT]
    run = subprocess.run(code, cwd=root, env=wide, capture_output=True, text=True, encoding="utf-8")
    assert "Contracts:" in run.stdout, run.stdout + run.stderr
    return re.findall(r"^(.*) BROKEN", run.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code, with its links, to seed violations in."""
    root = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, root / part, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_the_doors_are_closed() -> None:
    assert broken_contracts(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("robo_rl/api.py", "import robo_rl.tasks", "the core knows no room, and no room another"),
        ("offline/seed.py", "import robo_rl.tasks", "the core knows no room, and no room another"),
        ("sim2real/seed.py", "import robo_rl.tasks", "the core knows no room, and no room another"),
        ("tasks/seed.py", "import robo_rl.nets", "tasks imports api, config and registry"),
        ("tasks/terms/seed.py", "import robo_rl.run", "tasks imports api, config and registry"),
        (
            "sim2real/seed.py",
            "import robo_rl.algorithms",
            "sim2real imports api, config, registry and checkpoint",
        ),
        (
            "sim2real/contract.py",
            "import torch",
            "a contract is read with the standard library",
        ),
        ("robo_rl/nets/seed.py", "import mujoco.batch", "door: mujoco"),
        ("tasks/terms/seed.py", "def late() -> None:\n    import mujoco", "door: mujoco"),
        ("tasks/env.py", "import warp", "door: warp and isaaclab"),
        ("offline/seed.py", "import h5py", "door: h5py and minari"),
        ("robo_rl/cli.py", "import onnxruntime", "door: onnx"),
        ("robo_rl/run.py", "import wandb", "door: loggers"),
        ("robo_rl/evaluation.py", "import gymnasium", "door: gymnasium"),
        ("robo_rl/cli.py", "import stable_baselines3", "door: other libraries' learners"),
        ("robo_rl/cli.py", "import viser", "door: the viewers"),
    ],
)
def test_a_seeded_import_breaks_its_contract(
    tree: Path, file: str, line: str, contract: str
) -> None:
    seeded = tree / file
    before = seeded.read_text() if seeded.exists() else None
    seeded.write_text(f"{before or ''}\n{line}\n")
    try:
        assert contract in broken_contracts(tree)
    finally:
        if before is None:
            seeded.unlink()
        else:
            seeded.write_text(before)
