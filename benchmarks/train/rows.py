"""The rows of the table: what is divided by what, and the goal."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.train.contenders import OURS, PYTORCH, SINGLE, STOCK, Case
from benchmarks.train.meter import Figures
from benchmarks.train.network import DELAYED, GIGABIT
from benchmarks.train.workload import Workload

Quantity = Callable[[Figures], float | None]
Rounds = Mapping[str, Sequence[Figures]]
"""By a case's title, its figures in each round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A ratio of two cases, taken in each round, so that both sides were measured close in time."""

    title: str
    over: Case
    under: Case
    quantity: Quantity = lambda figures: figures.rate
    at_least: float | None = None
    """The goal, where a large ratio is good."""
    at_most: float | None = None
    """The goal, where a small ratio is good."""

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:.3g}" if self.at_most is not None else ""

    def result(self, rounds: Rounds) -> "Result | None":
        """None where one of the sides was not measured, or not in this quantity."""
        sides = zip(rounds.get(self.over.title, ()), rounds.get(self.under.title, ()), strict=False)
        pairs = [(self.quantity(over), self.quantity(under)) for over, under in sides]
        ratios = [over / under for over, under in pairs if over is not None and under]
        return Result(row=self, ratios=ratios) if ratios else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A row's ratios, one for each round."""

    row: Row
    ratios: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> str:
        return f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the goal; None where there is none."""
        if self.row.at_least is not None:
            return self.median >= self.row.at_least
        return self.median <= self.row.at_most if self.row.at_most is not None else None


def rows(base: Workload) -> list[Row]:
    """All rows over a base workload."""
    ours, stock = Case(name=OURS, workload=base), Case(name=STOCK, workload=base)
    single, pytorch = Case(name=SINGLE, workload=base), Case(name=PYTORCH, workload=base)
    return [
        Row(title="ours / stock fit under the strategy", over=ours, under=stock, at_least=3.5),
        Row(title="ours / fit in one process", over=ours, under=single, at_least=1.2),
        Row(title="ours / PyTorch in one process", over=ours, under=pytorch, at_least=1.0),
        Row(
            title="bytes per example, ours / stock",
            over=ours,
            under=stock,
            quantity=lambda figures: figures.bytes_per_example,
            at_most=1 / 4,
        ),
        *_networks(ours, goal=0.8),
        *_networks(stock, goal=None),
        *(_varied(base, "batch_size", size) for size in (256, 4096)),
        *(_varied(base, "dimension", size) for size in (8, 32, 128)),
    ]


def cases(of: Sequence[Row]) -> list[Case]:
    """What the rows need measured, each once, the sides of a row near each other."""
    return list({case.title: case for row in of for case in (row.over, row.under)}.values())


def _networks(case: Case, goal: float | None) -> list[Row]:
    """What a slow network costs."""
    links = {GIGABIT: "1 Gbit/s", DELAYED: "1 Gbit/s and 0.5 ms"}
    return [
        Row(
            title=f"{case.name}, {link} / loopback",
            over=dataclasses.replace(case, network=kind),
            under=case,
            at_least=goal,
        )
        for kind, link in links.items()
    ]


def _varied(base: Workload, field: str, value: int) -> Row:
    workload = dataclasses.replace(base, **{field: value})
    ours, stock = (Case(name=name, workload=workload) for name in (OURS, STOCK))
    return Row(title=f"{field.replace('_', ' ')} {value}, ours / stock", over=ours, under=stock)
