import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from robo_rl.config import ConfigError
from robo_rl.metrics import MetricsError
from robo_rl.report import report
from robo_rl.run import Run, RunError


def page_of(runs: list[Run], out: Path) -> tuple[str, str]:
    """The page, and its text without tags; every drawing in it is well-formed."""
    page = report([run.path for run in runs], out).read_text()
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(svg)
    body = re.sub(r"<(svg|style).*?</\1>", "", page, flags=re.S)
    return page, re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def test_a_report_is_one_file_that_needs_no_other(
    run_toy: Callable[..., Run], tmp_path: Path
) -> None:
    run = run_toy()
    page, text = page_of([run], tmp_path / "new" / "report.html")
    fetched = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', page)
    assert all((a or b).startswith("#") for a, b in fetched)
    assert "<script" not in page
    evaluation = run.evaluation()
    assert evaluation is not None
    assert f"position error (score) m {evaluation['scores']['position_error']:.4g}" in text
    assert "Differences in configuration" not in text
    for said in ("Evaluations", "Training", "Learner", "reach/distance", "[climber] step = 0.5"):
        assert said in text, said
    figures = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert {"reward", "return", "kl", "explained variance", "position error [m]"} <= set(figures)
    assert len(figures) == len(re.findall("<svg", page)) < 20


def test_seeds_are_one_curve_and_experiments_differ_by_what_differs(
    run_toy: Callable[..., Run], tmp_path: Path
) -> None:
    runs = [run_toy(seed=seed, climber={"step": step}) for step in (0.5, 0.1) for seed in (0, 1)]
    page, text = page_of(runs, tmp_path / "report.html")
    assert "step 0.5 (2)" in text and "step 0.1 (2)" in text
    assert "Differences in configuration step 0.5 step 0.1 climber.step 0.5 0.1 Origin" in text
    values = [(run.evaluation() or {})["scores"]["position_error"] for run in runs[:2]]
    mean, least, most = sum(values) / 2, min(values), max(values)
    assert f"m {mean:,.4g} ({least:,.4g} to {most:,.4g})" in text
    assert "fill-opacity: 0.2" in page, "the band from least to most"


def test_the_tracking_suite_is_shown_where_a_run_has_it(
    run_toy: Callable[..., Run], tmp_path: Path
) -> None:
    run = run_toy(iterations=1)
    rows = [{"scenario": "line x", "position_rmse": 0.0123}, {"scenario": "a <b>", "falls": 2}]
    (run.path / "tracking").mkdir()
    (run.path / "tracking" / "tracking.json").write_text(json.dumps({"rows": rows}))
    (run.path / "tracking" / "path.svg").write_text('<?xml version="1.0"?><svg id="mine"></svg>')
    page, text = page_of([run], tmp_path / "report.html")
    assert "scenario position rmse falls line x 0.0123 - a &lt;b&gt; - 2" in text
    assert '<figure><svg id="mine"></svg></figure>' in page


def test_a_run_without_an_end_has_a_report(run_toy: Callable[..., Run], tmp_path: Path) -> None:
    run = run_toy(iterations=4)
    (run.path / "eval.json").unlink()
    _, text = page_of([run], tmp_path / "report.html")
    last = run.metrics()[-1]["eval/position_error"]
    assert f"position error - {last:.4g}" in text or f"position error {last:.4g}" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("eval.json", b"{}"),
        ("eval.json", b"{"),
        ("run.json", b"[]"),
        ("run.json", b"\xff"),
        ("metrics.jsonl", b'\xff\x00\n{"iteration": 1, "steps": 1}\n'),
        ("metrics.jsonl", b'3\n{"iteration": 1, "steps": 1}\n'),
        ("config.toml", b""),
    ],
)
def test_a_damaged_file_is_named(
    run_toy: Callable[..., Run], tmp_path: Path, name: str, content: bytes
) -> None:
    run = run_toy(iterations=2)
    (run.path / name).write_bytes(content)
    with pytest.raises(
        (RunError, ConfigError, MetricsError), match=rf"{name}\b.*(damaged|does not say)"
    ):
        report([run.path], tmp_path / "report.html")
