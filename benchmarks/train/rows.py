"""The rows of the table: what each needs measured, how its value comes out of that, and the goal."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.train.contenders import OURS, PYTORCH, SINGLE, STOCK, Case
from benchmarks.train.meter import Figures
from benchmarks.train.network import DELAYED, GIGABIT
from benchmarks.train.quality import Planted
from benchmarks.train.workload import Workload

SLOW_NETWORKS: Mapping[str, Any] = {
    "exchange_steps": 16,
    "pull_dtype": "bfloat16",
    "push_dtype": "bfloat16",
    "dense_compression": "topk",
}
"""The second named configuration, for slow networks: what differs from the defaults."""
SETTINGS: Sequence[Mapping[str, Any]] = (
    {},
    SLOW_NETWORKS,
    {"exchange_steps": 1},
    {"exchange_steps": 16},
    {"overlap": False},
    {"pull_dtype": "bfloat16", "push_dtype": "bfloat16"},
    {"pull_dtype": "float16", "push_dtype": "float16"},
    {"dense_compression": "topk"},
    {"dense_compression": "auto"},
    {"compute_dtype": "bfloat16"},
)
"""Of caching, compression and overlap: each with its speed, its bytes and its AUC."""
MANY_KEYS, FEW_KEYS = 20_000_000, 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All that one run measured."""

    rounds: Mapping[str, Sequence[Figures]] = field(default_factory=dict)
    """By a case's title, its figures in each round."""
    planted: Mapping[str, Planted] = field(default_factory=dict)
    """By a case's title, the quality of the same on the synthetic log."""
    movielens: Mapping[str, float] = field(default_factory=dict)
    """`ours` and `reference`: mean AUC on MovieLens-100k."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    title: str
    values: Callable[[Measured], Sequence[float]]
    """One for each round; none where something was not measured."""
    timed: tuple[Case, ...] = ()
    """Cases to measure the speed of."""
    judged: tuple[Case, ...] = ()
    """Cases of ours to measure the quality of, on the synthetic log."""
    movielens: bool = False
    """Whether it needs the quality on MovieLens-100k."""
    at_least: float | None = None
    """The goal, where a large value is good."""
    at_most: float | None = None
    """The goal, where a small one is."""

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:.3g}" if self.at_most is not None else ""

    def met(self, measured: Measured) -> bool | None:
        """Whether the median reaches the goal; None where there is no goal or no value."""
        values = self.values(measured)
        if not values:
            return None
        median = statistics.median(values)
        if self.at_least is not None:
            return median >= self.at_least
        return median <= self.at_most if self.at_most is not None else None


def rows(base: Workload) -> list[Row]:
    """All rows over a base workload."""
    ours, stock, single, pytorch = (Case(name=name, workload=base) for name in (OURS, STOCK, SINGLE, PYTORCH))
    slow = dataclasses.replace(ours, settings=SLOW_NETWORKS)
    bfloat16 = dataclasses.replace(ours, settings={"compute_dtype": "bfloat16"})
    static = dataclasses.replace(ours, workload=dataclasses.replace(base, dynamic=False))
    return [
        _speed("ours / stock fit under the strategy", ours, stock, at_least=3.5),
        _speed("ours / fit in one process", ours, single, at_least=1.2),
        _speed("ours / PyTorch in one process", ours, pytorch, at_least=1.0),
        _bytes("bytes per example, ours / stock", ours, stock, at_most=1 / 4),
        _bytes("bytes per example, ours for slow networks / stock", slow, stock, at_most=1 / 6),
        _speed("dynamic / static tables", ours, static, at_least=0.95),
        *_keys(base),
        _speed("ours, 1 Gbit/s / loopback", _over(GIGABIT, ours), ours),
        _speed("ours for slow networks, 1 Gbit/s / ours, loopback", _over(GIGABIT, slow), ours, at_least=0.8),
        _speed("stock, 1 Gbit/s / loopback", _over(GIGABIT, stock), stock),
        _speed("ours, 1 Gbit/s and 0.5 ms / loopback", _over(DELAYED, ours), ours),
        _speed("ours for slow networks, 1 Gbit/s and 0.5 ms / ours, loopback", _over(DELAYED, slow), ours, at_least=0.8),
        _speed("stock, 1 Gbit/s and 0.5 ms / loopback", _over(DELAYED, stock), stock),
        *(_varied(base, "batch_size", size) for size in (256, 1024, 4096)),
        *(_varied(base, "dimension", size) for size in (8, 16, 32, 128)),
        _speed("ours computing in bfloat16 / float32", bfloat16, ours),
        *(_quality(dataclasses.replace(ours, settings=settings)) for settings in SETTINGS),
        Row(
            title="AUC on MovieLens-100k, ours - in one process",
            values=lambda measured: [m["ours"] - m["reference"]] if (m := measured.movielens) else [],
            movielens=True,
            at_least=-0.002,
        ),
    ]


def timed_cases(of: Sequence[Row]) -> list[Case]:
    """Each case once, the two sides of a row near each other."""
    return list({case.title: case for row in of for case in row.timed}.values())


def judged_cases(of: Sequence[Row]) -> list[Case]:
    return list({case.title: case for row in of for case in row.judged}.values())


def _speed(title: str, over: Case, under: Case, at_least: float | None = None) -> Row:
    return Row(title=title, values=_each(over, under, lambda a, b: a.rate / b.rate), timed=(over, under), at_least=at_least)


def _bytes(title: str, over: Case, under: Case, at_most: float) -> Row:
    def ratio(a: Figures, b: Figures) -> float | None:
        return a.bytes_per_example / b.bytes_per_example if a.bytes_per_example and b.bytes_per_example else None

    return Row(title=title, values=_each(over, under, ratio), timed=(over, under), at_most=at_most)


def _keys(base: Workload) -> list[Row]:
    """What it costs that many keys are there, when the same examples are trained."""
    values = FEW_KEYS // base.log.columns
    log = dataclasses.replace(base.log, rows=2**18, values=values)
    many, few = (
        Case(name=OURS, workload=dataclasses.replace(base, log=dataclasses.replace(log, present_keys=keys)))
        for keys in (MANY_KEYS, FEW_KEYS)
    )
    row_bytes = 2 * 4 * base.dimension  # weights, and one optimizer slot

    def beyond(a: Figures, b: Figures) -> float:
        return (a.memory_bytes["ps"] - b.memory_bytes["ps"]) / (MANY_KEYS - FEW_KEYS) - row_bytes

    return [
        _speed("20 M keys present / 1 M", many, few, at_least=0.9),
        Row(title="bytes per key beyond row and slot", values=_each(many, few, beyond), timed=(many, few), at_most=32),
    ]


def _varied(base: Workload, field: str, value: int) -> Row:
    workload = dataclasses.replace(base, **{field: value})
    ours, stock = (Case(name=name, workload=workload) for name in (OURS, STOCK))
    return _speed(f"{field.replace('_', ' ')} {value}, ours / stock", ours, stock)


def _quality(case: Case) -> Row:
    """The share of the way from an AUC of 0.5 to the best that is possible; its speed is measured too."""
    return Row(
        title=f"way from 0.5 to Bayes AUC, {case.title}",
        values=lambda measured: [found.share] if (found := measured.planted.get(case.title)) else [],
        timed=(case,),
        judged=(case,),
        at_least=0.98 if case.settings in ({}, SLOW_NETWORKS) else None,
    )


def _over(kind: str, case: Case) -> Case:
    return dataclasses.replace(case, network=kind)


def _each(over: Case, under: Case, value: Callable[[Figures, Figures], float | None]) -> Callable[[Measured], Sequence[float]]:
    """`value` of two cases' figures in each round, so that both sides were measured close in time."""

    def values(measured: Measured) -> list[float]:
        pairs = zip(measured.rounds.get(over.title, ()), measured.rounds.get(under.title, ()), strict=False)
        return [found for a, b in pairs if (found := value(a, b)) is not None]

    return values
