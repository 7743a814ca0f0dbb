"""Rows and the report: values out of figures, goals, what could not be measured."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.train.contenders import Case
from benchmarks.train.meter import Figures
from benchmarks.train.quality import Planted
from benchmarks.train.rows import Measured, rows, timed_cases
from benchmarks.train.table import Report
from benchmarks.train.workload import Workload

BASE = Workload()
ROWS = {row.title: row for row in rows(BASE)}


def _figures(rate: float, size: int = 100) -> Figures:
    return Figures(
        examples=1000,
        seconds=1000 / rate,
        cpu_seconds={"worker": 1000 / rate},
        wire_bytes=1000 * size,
        cores=2,
        memory_bytes={"ps": 0},
        foreign_seconds=0.0,
    )


def test_a_ratio_is_taken_in_each_round_and_judged_by_the_median() -> None:
    row = ROWS["ours / stock fit under the strategy"]
    stock = [_figures(rate) for rate in (10.0, 20.0, 10.0)]
    ours = [_figures(rate) for rate in (40.0, 60.0, 36.0)]
    measured = Measured(rounds={"ours": ours, "stock": stock})
    assert row.values(measured) == pytest.approx([4.0, 3.0, 3.6])
    assert row.met(measured) is True
    slower = Measured(rounds={"ours": stock, "stock": ours})
    assert row.met(slower) is False
    assert row.met(Measured()) is None


def test_a_small_value_meets_a_goal_for_bytes() -> None:
    row = ROWS["bytes per example, ours / stock"]
    assert row.met(Measured(rounds={"ours": [_figures(1, 20)], "stock": [_figures(1, 100)]})) is True
    assert row.met(Measured(rounds={"ours": [_figures(1, 30)], "stock": [_figures(1, 100)]})) is False


def test_memory_beyond_row_and_slot_is_by_key() -> None:
    row = ROWS["bytes per key beyond row and slot"]
    many, few = row.timed
    grown = dataclasses.replace(_figures(1), memory_bytes={"ps": 19_000_000 * (2 * 4 * 16 + 30)})
    assert row.values(Measured(rounds={many.title: [grown], few.title: [_figures(1)]})) == pytest.approx([30.0])


def test_cases_have_titles_of_their_own() -> None:
    every = [case for row in ROWS.values() for case in row.timed]
    by_title: dict[str, Case] = {}
    for case in every:
        assert by_title.setdefault(case.title, case) == case
    assert len(timed_cases(list(ROWS.values()))) == len(by_title)


def test_the_report_says_what_was_missed_and_left_out(tmp_path: Path) -> None:
    wanted = [row for title, row in ROWS.items() if title.startswith(("ours / ", "way"))][:4]
    profiled = dataclasses.replace(_figures(10), extras={"profile": {"parse": 0.1, "pull": 0.2, "compute": 0.6, "push": 0.1}})
    measured = Measured(
        rounds={"ours": [profiled], "stock": [_figures(10)], "single": [_figures(5)]},
        planted={"ours": Planted(auc=0.74, bayes=0.75)},
    )
    report = Report(base=BASE, rows=wanted, measured=measured, left_out={"pytorch": "not installed"})
    assert report.missed == ["ours / stock fit under the strategy", "way from 0.5 to Bayes AUC, ours"]
    text = report.text()
    assert "left out: pytorch (not installed)" in text
    assert "0.7400 of 0.7500" in text
    assert "NOT met" in text
    assert "not measured" in text
    assert "60%" in text
    report.write(tmp_path)
    assert json.loads((tmp_path / "train.json").read_text())["rows"][1]["values"] == [2.0]
    assert "| ours / fit in one process | 2 |" in (tmp_path / "train.md").read_text()
