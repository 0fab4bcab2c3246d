"""What the README and docs/ tell a user to type works."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from robo_rl import cli
from robo_rl.tasks import viewer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL = ["--iterations", "1", "--num-envs", "16", "--task.episode-length-s", "0.2"]
"""Appended to a training: the same command, done in a second."""


@pytest.fixture(autouse=True, scope="module")
def no_video() -> Iterator[None]:
    """Drawing ten seconds without a GPU takes longer than all else; it has tests of its own."""

    def record(*_: object, **__: object) -> None:
        raise viewer.NoGLError("not in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(viewer, "record", record)
        yield


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def _commands() -> list[str]:
    """Every robo-rl line of the pages, once."""
    lines = [
        line.split(" #")[0].strip()
        for page in PAGES
        for language in ("", "bash", "sh")
        for block in _blocks(page, language)
        for line in block.splitlines()
    ]
    return list(dict.fromkeys(line for line in lines if line.startswith("robo-rl ")))


@pytest.fixture(scope="module")
def work(no_video: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one short run and the configuration file that the docs show."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (toml,) = _blocks(ROOT / "docs" / "cli.md", "toml")
        Path("mine.toml").write_text(toml)
        assert cli.main(["train", "go2_arx5-twist", "--ppo.num-steps", "4", *SMALL]) == 0
    return folder


@pytest.mark.parametrize("command", _commands())
def test_a_command_of_the_docs_runs(
    command: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    (run, *_) = (work / "runs" / "go2_arx5-twist").iterdir()
    words = shlex.split(re.sub(r"runs/\S*?\.\.\.|runs/\S*|\bRUN\b", str(run), command))[1:]
    if words[0] == "train" and "--resume" in words:
        words = [*words[: words.index("latest") + 1], "--iterations", "2"]
    elif words[0] == "train" and "--help" not in words:
        words += SMALL
    elif words[0] == "eval":
        words += ["--num-envs", "1"]
    elif words[0] == "bench":
        words += ["--num-envs", "16"]
    elif words[0] == "play":
        pytest.skip("opens a window or a page; tests/tasks/test_viewer.py does that")
    assert cli.main(words) == 0


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _blocks(page, "python")], ids=lambda page: page.name
)
def test_the_python_of_a_page_runs(
    page: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (run, *_) = (work / "runs" / "go2_arx5-twist").iterdir()
    code = re.sub(r"runs/[^\"]*", str(run), "\n".join(_blocks(page, "python")))
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing
