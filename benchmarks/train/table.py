"""Writes what was measured as text, Markdown and JSON."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.train.contenders import Case
from benchmarks.train.meter import Figures
from benchmarks.train.rows import Result, Rounds, Row
from benchmarks.train.workload import Workload
from paraserve.components.train.config import TrainConfig

FOREIGN_SHARE = 0.05
"""When other processes took more of the cores, a figure is marked."""
Lines = list[tuple[str, ...]]
"""A table: its head first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One run of the benchmark."""

    base: Workload
    rows: Sequence[Row]
    cases: Sequence[Case]
    rounds: Rounds
    left_out: Mapping[str, str]
    """For each case that could not be measured, why."""

    @property
    def results(self) -> list[Result]:
        return [result for row in self.rows if (result := row.result(self.rounds))]

    @property
    def missed(self) -> list[str]:
        """Titles of the rows whose goal was not met."""
        return [result.row.title for result in self.results if result.met is False]

    def text(self) -> str:
        parts = [self._head(), _aligned(self._measured()), *self._notes(), _aligned(self._ratios())]
        return "\n\n".join(parts)

    def write(self, folder: Path) -> None:
        """train.md and train.json."""
        parts = ["# Train benchmark", self._head(), _markdown(self._measured()), *self._notes(), _markdown(self._ratios())]
        (folder / "train.md").write_text("\n\n".join(parts) + "\n")
        (folder / "train.json").write_text(json.dumps(self._json(), indent=1))

    def _head(self) -> str:
        work, log = self.base, self.base.log
        hidden = "-".join(map(str, work.hidden))
        defaults = TrainConfig(shards="SHARDS", snapshots="SNAPSHOTS").settings()
        return (
            f"{log.columns} ids of {log.values} values, Zipf {log.exponent}, {log.dense} floats, dimension {work.dimension}, "
            f"batch {work.batch_size}, MLP {hidden}-1, Adagrad; {log.rows} examples\n"
            f"1 coordinator, {work.workers} workers, {work.parameter_servers} parameter servers, {work.cores} cores\n"
            "ours: the shipped defaults; model, hidden units, batch size, learning rate, initial rows and servers are the "
            f"workload's:\n{defaults}"
        )

    def _measured(self) -> Lines:
        head = ("measured", "examples/s", "spread", "per CPU second", "CPU s per million, by role", "bytes/example", "others")
        return [head, *(_measured(case, self.rounds[case.title]) for case in self.cases if case.title in self.rounds)]

    def _notes(self) -> list[str]:
        notes = [f"left out: {title} ({why})" for title, why in self.left_out.items()]
        if any(_foreign(f) > FOREIGN_SHARE for figures in self.rounds.values() for f in figures):
            notes.append("! other processes took more than 5 % of the cores meanwhile: measure again on a quiet machine")
        return ["\n".join(notes)] if notes else []

    def _ratios(self) -> Lines:
        lines: Lines = [("row", "ratio", "spread", "goal", "")]
        for row in self.rows:
            result = row.result(self.rounds)
            if result is None:
                lines.append((row.title, "", "", row.goal, "not measured"))
            else:
                met = {None: "", True: "met", False: "NOT met"}[result.met]
                lines.append((row.title, f"{result.median:.2f}", result.spread, row.goal, met))
        return lines

    def _json(self) -> dict[str, Any]:
        return {
            "workload": dataclasses.asdict(self.base),
            "cases": {title: [dataclasses.asdict(f) for f in figures] for title, figures in self.rounds.items()},
            "rows": [
                {"title": r.row.title, "goal": r.row.goal, "ratios": list(r.ratios), "median": r.median, "met": r.met}
                for r in self.results
            ],
            "left_out": dict(self.left_out),
        }


def one_line(case: Case, figures: Figures) -> str:
    """A measurement, as the run goes on."""
    return f"{case.title}: {figures.rate:,.0f} examples/s, {figures.examples_per_cpu_second:,.0f} per CPU second"


def _measured(case: Case, figures: Sequence[Figures]) -> tuple[str, ...]:
    rates = [f.rate for f in figures]
    sizes = [f.bytes_per_example for f in figures if f.bytes_per_example]
    foreign = max(_foreign(f) for f in figures)
    return (
        case.title,
        f"{statistics.median(rates):,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        f"{statistics.median(f.examples_per_cpu_second for f in figures):,.0f}",
        _by_role(figures),
        f"{statistics.median(sizes):,.0f}" if sizes else "",
        f"{foreign:.0%}{' !' if foreign > FOREIGN_SHARE else ''}",
    )


def _by_role(figures: Sequence[Figures]) -> str:
    examples = sum(f.examples for f in figures)
    totals = {role: sum(f.cpu_seconds[role] for f in figures) for role in figures[0].cpu_seconds}
    return ", ".join(f"{role} {1e6 * seconds / examples:.1f}" for role, seconds in totals.items() if seconds)


def _foreign(figures: Figures) -> float:
    """The share of the cores that other processes took."""
    return figures.foreign_seconds / figures.seconds / figures.cores


def _aligned(lines: Lines) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _markdown(lines: Lines) -> str:
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|" + " --- |" * len(lines[0]), *body])
