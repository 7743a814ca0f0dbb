"""Writes what was measured as text, Markdown and JSON."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.train.contenders import Case
from benchmarks.train.meter import Figures
from benchmarks.train.quality import Planted
from benchmarks.train.rows import SLOW_NETWORKS, Measured, Row
from benchmarks.train.workload import Workload
from paraserve.components.train.config import TrainConfig

FOREIGN_SHARE = 0.05
"""When other processes took more of the cores, a figure is marked."""
PHASES = ("parse", "pull", "compute", "push")
"""Of a worker's time; a contender that knows them tells their shares in its extras."""
PROFILE_HEAD = ("where a worker's time goes", *PHASES)
Lines = list[tuple[str, ...]]
"""A table: its head first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One run of the benchmark."""

    base: Workload
    rows: Sequence[Row]
    measured: Measured
    left_out: Mapping[str, str]
    """For each case that could not be measured, why."""

    @property
    def missed(self) -> list[str]:
        """Titles of the rows whose goal was not met."""
        return [row.title for row in self.rows if row.met(self.measured) is False]

    def text(self) -> str:
        return "\n\n".join([self._head(), *map(_aligned, self._tables()), *self._notes()])

    def write(self, folder: Path) -> None:
        """train.md and train.json."""
        parts = ["# Train benchmark", self._head(), *map(_markdown, self._tables()), *self._notes()]
        (folder / "train.md").write_text("\n\n".join(parts) + "\n")
        (folder / "train.json").write_text(json.dumps(self._json(), indent=1))

    def _head(self) -> str:
        work, log = self.base, self.base.log
        hidden = "-".join(map(str, work.hidden))
        defaults = TrainConfig(shards="SHARDS", snapshots="SNAPSHOTS").settings()
        return (
            f"{log.columns} ids of {log.values} values, Zipf {log.exponent}, {log.dense} floats, dimension {work.dimension}, "
            f"batch {work.batch_size}, MLP {hidden}-1, Adagrad; {log.rows} examples\n"
            f"1 coordinator, {work.workers} workers, {work.parameter_servers} parameter servers, {work.cores} cores\n\n"
            "ours: the shipped defaults, but for the model, its widths, batch size, learning rate, initial rows and servers, "
            f"which are the workload's:\n{_settings(defaults)}\n\n"
            f"ours for slow networks: the same, but for {_settings(SLOW_NETWORKS)}"
        )

    def _tables(self) -> list[Lines]:
        profiles = [
            _profile(title, figures) for title, figures in self.measured.rounds.items() if "profile" in figures[0].extras
        ]
        return [self._cases(), *([[PROFILE_HEAD, *profiles]] if profiles else []), self._rows()]

    def _cases(self) -> Lines:
        head = (
            "measured",
            "examples/s",
            "spread",
            "per CPU second",
            "CPU s per million, by role",
            "bytes/example",
            "AUC",
            "others",
        )
        quality = self.measured.planted
        return [head, *(_case(title, figures, quality.get(title)) for title, figures in self.measured.rounds.items())]

    def _notes(self) -> list[str]:
        notes = [f"left out: {title} ({why})" for title, why in self.left_out.items()]
        if any(_foreign(f) > FOREIGN_SHARE for figures in self.measured.rounds.values() for f in figures):
            notes.append("! other processes took more than 5 % of the cores meanwhile: measure again on a quiet machine")
        return ["\n".join(notes)] if notes else []

    def _rows(self) -> Lines:
        lines: Lines = [("row", "value", "spread", "goal", "")]
        for row in self.rows:
            if values := row.values(self.measured):
                met = {None: "", True: "met", False: "NOT met"}[row.met(self.measured)]
                spread = f"{min(values):.3g} to {max(values):.3g}" if len(values) > 1 else ""
                lines.append((row.title, f"{statistics.median(values):.3g}", spread, row.goal, met))
            else:
                lines.append((row.title, "", "", row.goal, "not measured"))
        return lines

    def _json(self) -> dict[str, Any]:
        return {
            "workload": dataclasses.asdict(self.base),
            "measured": dataclasses.asdict(self.measured),
            "rows": [
                {"title": row.title, "goal": row.goal, "values": list(row.values(self.measured)), "met": row.met(self.measured)}
                for row in self.rows
            ],
            "left_out": dict(self.left_out),
        }


def one_line(case: Case, figures: Figures) -> str:
    """A measurement, as the run goes on."""
    return f"{case.title}: {figures.rate:,.0f} examples/s, {figures.examples_per_cpu_second:,.0f} per CPU second"


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _case(title: str, figures: Sequence[Figures], quality: Planted | None) -> tuple[str, ...]:
    rates = [f.rate for f in figures]
    sizes = [f.bytes_per_example for f in figures if f.bytes_per_example]
    foreign = max(_foreign(f) for f in figures)
    return (
        title,
        f"{statistics.median(rates):,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        f"{statistics.median(f.examples_per_cpu_second for f in figures):,.0f}",
        _by_role(figures),
        f"{statistics.median(sizes):,.0f}" if sizes else "",
        f"{quality.auc:.4f} of {quality.bayes:.4f}" if quality else "",
        f"{foreign:.0%}{' !' if foreign > FOREIGN_SHARE else ''}",
    )


def _profile(title: str, figures: Sequence[Figures]) -> tuple[str, ...]:
    """The median share of a worker's time that each of PHASES took."""
    shares = [f"{statistics.median(f.extras['profile'][phase] for f in figures):.0%}" for phase in PHASES]
    return (title, *shares)


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
