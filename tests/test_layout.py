"""The layout's promises: one name per file, nothing accidental on a user's path, nothing unread."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from itertools import chain
from pathlib import Path

import pytest
from mypy.main import process_options

import robo_rl

ROOT = Path(__file__).parent.parent
ROOMS = ("tasks", "offline", "sim2real", "configs")
CODE = ("robo_rl", "tasks", "offline", "sim2real", "configs", "tests")


def sources() -> set[Path]:
    """Every Python file of the library and its tests, by its real path."""
    return {path for folder in CODE for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_importable_by_its_package_name(room: str) -> None:
    here = resources.files(f"robo_rl.{room}")
    assert Path(str(here)).resolve() == ROOT / room


@pytest.mark.parametrize("name", [*ROOMS, "tests", "benchmarks", "docs"])
def test_no_folder_is_a_top_level_package(name: str, tmp_path: Path) -> None:
    code = f"import importlib.util as u; raise SystemExit(u.find_spec({name!r}) is not None)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("room", ["tasks", "offline", "sim2real"])
def test_a_room_refuses_its_folder_name(room: str) -> None:
    code = [sys.executable, "-c", f"import {room}"]
    run = subprocess.run(code, cwd=ROOT, capture_output=True, text=True)
    assert f"import robo_rl.{room}" in run.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_links_lead_to_the_rooms(room: str) -> None:
    assert os.readlink(ROOT / "robo_rl" / room) == f"../{room}"


def test_every_folder_of_code_is_a_package() -> None:
    """import-linter reads packages only: it would say nothing of a folder without __init__.py."""
    folders = {path.parent for path in sources() if "tests" not in path.relative_to(ROOT).parts}
    assert [f for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_mypy_reads_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the links or it does not: only the modules that it lists tell."""
    monkeypatch.chdir(ROOT)
    listed = {source.module for source in process_options([])[0]}
    there = set[str]()
    for path in sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] in ("robo_rl", "tests") else ("robo_rl", *parts)
        there.add(".".join(parts).removesuffix(".__init__"))
    assert listed == there


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert metadata.version("robo-rl") == robo_rl.__version__


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = chain(project["dependencies"], *project["optional-dependencies"].values())
    names = {w.split(">=")[0] for w in wanted if not w.startswith("robo-rl[")}
    pins = [
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert {name for name, _ in pins} == names
    assert dict(pins)["torch"] == "2.13.0"
