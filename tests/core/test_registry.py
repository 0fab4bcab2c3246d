import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from robo_rl import registry


def test_an_unknown_name_is_an_error_with_the_nearest_match() -> None:
    with pytest.raises(ValueError, match=r"no task 'go2_arx5-twits', only .*'go2_arx5-twist'"):
        registry.task("go2_arx5-twits")
    with pytest.raises(ValueError, match=r"no learner 'ppoo', only .*did you mean 'ppo'"):
        registry.learner("ppoo")


def test_other_packages_add_names_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(*, group: str) -> list[EntryPoint]:
        return [EntryPoint("theirs", "fractions:Fraction", group)] if "tasks" in group else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert registry.find("task", "theirs").__name__ == "Fraction"
    assert set(registry.tasks()) == {"theirs", *registry.TASKS}
    assert "theirs" not in registry.learners()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TASKS, "warped", "robo_rl.registry:task")
    monkeypatch.setattr(registry, "import_module", lambda name: __import__("no_such_engine"))
    with pytest.raises(ModuleNotFoundError, match="'warped' needs the package 'no_such_engine'"):
        registry.find("task", "warped")


def test_names_are_listed_without_torch_or_a_simulator() -> None:
    code = (
        "import sys, robo_rl.registry as r; assert r.tasks() and r.learners();"
        "print([m for m in ('torch', 'numpy', 'mujoco') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
