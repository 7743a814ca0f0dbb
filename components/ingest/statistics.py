"""Statistics of the kept rows of all splits, in memory that does not grow with them. Where a number is not exact, it says so.

{"splits": {NAME: {"rows", "positives", "label_rate"}},
 "dense": {NAME: {"count", "missing", "min", "max", "mean", "std", "quantiles": {"0.01": ...}, "quantiles_from"}},
 "categorical": {NAME: {"count", "missing", "out_of_range", "distinct", "distinct_is", "top": [{"value", "key", "count"}],
                        "top_is"}},
 "lists": {NAME: {"rows", "empty", "cut", "length_mean", "length_max", "items", "out_of_range", "distinct", "distinct_is"}}}
"""

import json
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from paraserve.components.features import keys
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.features.transforms import Moments
from paraserve.components.ingest.packing import Distinct, Packed
from paraserve.components.ingest.splits import uniform
from paraserve.components.manifest import SPLITS

FILE = "statistics.json"
TOP = 20
SAMPLE = 1 << 16
"""Values that quantiles are taken from."""
COUNTED = 1 << 16
"""Texts of a column whose counts outlive a clearing; one happens at twice as many."""
SMALLEST = 1 << 14
"""Keys that the number of distinct values is estimated from; the standard error is 1 / sqrt(SMALLEST), 0.8 %."""
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_SAMPLE_SEED = 0x5EED


class Statistics:
    """Gathers batch by batch."""

    def __init__(self, spec: FeatureSpec):
        self.rows, self.positives = np.zeros(len(SPLITS), np.int64), np.zeros(len(SPLITS), np.int64)
        self.dense = {column.name: _Numbers() for column in spec.dense}
        self.categorical = {column.name: (_Values(), _TopValues()) for column in spec.categorical}
        self.lists = {column.name: (_Values(), _Lengths()) for column in spec.lists}

    def add(self, packed: Packed, split: npt.NDArray[np.int8], index: npt.NDArray[np.int64]) -> None:
        """Adds rows with their splits (int8 [n]) and their numbers in the source (int64 [n])."""
        block = packed.block
        self.rows += np.bincount(split, minlength=len(SPLITS))
        self.positives += np.bincount(split[block.labels > 0], minlength=len(SPLITS))
        priority = uniform(_SAMPLE_SEED, index)
        for numbers, column in zip(self.dense.values(), block.dense.T, strict=True):
            numbers.add(column, priority)
        for name, (values, top) in self.categorical.items():
            values.add(packed.distinct[name])
            top.add(packed.distinct[name])
        for (name, (values, lengths)), (row_lengths, _) in zip(self.lists.items(), block.lists, strict=True):
            values.add(packed.distinct[name])
            lengths.add(row_lengths, packed.cut[name])

    def to_json(self) -> bytes:
        content = {
            "splits": {name: self._split(i) for i, name in enumerate(SPLITS)},
            "dense": {name: numbers.to_json() for name, numbers in self.dense.items()},
            "categorical": {n: values.of_column() | top.to_json() for n, (values, top) in self.categorical.items()},
            "lists": {name: lengths.to_json() | values.of_items() for name, (values, lengths) in self.lists.items()},
        }
        return json.dumps(content, indent=1, allow_nan=False).encode()

    def _split(self, i: int) -> dict[str, Any]:
        rows, positives = int(self.rows[i]), int(self.positives[i])
        return {"rows": rows, "positives": positives, "label_rate": positives / rows if rows else None}


class _Numbers:
    """One dense column. Quantiles come from the values with the lowest random priorities (bottom-k sampling)."""

    def __init__(self) -> None:
        self.moments, self.missing = Moments(0, 0.0, 0.0), 0
        self.low, self.high = np.inf, -np.inf
        self.sample, self.priority = np.zeros(0, np.float32), np.zeros(0)

    def add(self, values: npt.NDArray[np.float32], priority: npt.NDArray[np.float64]) -> None:
        present = ~np.isnan(values)
        self.missing += len(values) - int(present.sum())
        values, priority = values[present], priority[present]
        if not len(values):
            return
        self.moments = self.moments.merged(Moments.of(values))
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.sample = np.concatenate([self.sample, values])
        self.priority = np.concatenate([self.priority, priority])
        if len(self.sample) > SAMPLE:
            lowest = np.argpartition(self.priority, SAMPLE)[:SAMPLE]
            self.sample, self.priority = self.sample[lowest], self.priority[lowest]

    def to_json(self) -> dict[str, Any]:
        count = self.moments.count
        if not count:
            return {"count": 0, "missing": self.missing}
        quantiles = np.quantile(self.sample, QUANTILES).tolist()
        return {
            "count": count,
            "missing": self.missing,
            "min": self.low,
            "max": self.high,
            "mean": self.moments.mean,
            "std": self.moments.std,
            "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
            "quantiles_from": "all values" if count == len(self.sample) else f"a random sample of {len(self.sample)} values",
        }


class _Values:
    """The keys of a categorical column or of a list's items; distinct ones by their k minimum values (Beyer et al., 2007)."""

    def __init__(self) -> None:
        self.count = self.missing = self.out_of_range = 0
        self.smallest = np.zeros(0, np.uint64)

    def add(self, distinct: Distinct) -> None:
        counts = distinct.counts
        self.count += int(counts.sum())
        self.missing += int(counts[distinct.keys == keys.MISSING].sum())
        self.out_of_range += int(counts[distinct.keys == keys.OUT_OF_RANGE].sum())
        # Keys are uniform already: they are hashes.
        found = distinct.keys[_is_value(distinct.keys)].view(np.uint64)
        if len(self.smallest) == SMALLEST:
            found = found[found < self.smallest[-1]]
        if len(found):
            self.smallest = np.unique(np.concatenate([self.smallest, found]))[:SMALLEST]

    def of_column(self) -> dict[str, Any]:
        return {"count": self.count, "missing": self.missing, "out_of_range": self.out_of_range, **self._distinct()}

    def of_items(self) -> dict[str, Any]:
        return {"items": self.count - self.missing, "out_of_range": self.out_of_range, **self._distinct()}

    def _distinct(self) -> dict[str, Any]:
        if len(self.smallest) < SMALLEST:
            return {"distinct": len(self.smallest), "distinct_is": "exact"}
        estimate = round((SMALLEST - 1) / (float(self.smallest[-1]) / 2.0**64))
        return {"distinct": estimate, "distinct_is": "estimated, standard error 0.8 %"}


class _TopValues:
    """The most frequent values. Past 2 * COUNTED texts only the COUNTED most frequent are kept, so that a text which was
    dropped and came back counts too low; which of the exact counts these could be is not known, so `top_is` says it of all."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.keys: dict[str, int] = {}
        self.exact = True

    def add(self, distinct: Distinct) -> None:
        counts = distinct.counts.tolist()
        for i in np.flatnonzero(_is_value(distinct.keys)).tolist():
            self.counts[distinct.texts[i]] += counts[i]
            self.keys[distinct.texts[i]] = int(distinct.keys[i])
        if len(self.counts) > 2 * COUNTED:
            self.counts = Counter(dict(self.counts.most_common(COUNTED)))
            self.keys = {text: self.keys[text] for text in self.counts}
            self.exact = False

    def to_json(self) -> dict[str, Any]:
        # Equal counts in the order of their texts, whatever the order of the rows.
        top = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:TOP]
        found = [{"value": text, "key": self.keys[text], "count": count} for text, count in top]
        return {"top": found, "top_is": "exact" if self.exact else "counted from below: rare values were dropped on the way"}


class _Lengths:
    """Lengths of one list column, after the cut to its `max_length`."""

    def __init__(self) -> None:
        self.rows = self.empty = self.total = self.longest = self.cut = 0

    def add(self, lengths: npt.NDArray[np.int32], cut: int) -> None:
        self.rows += len(lengths)
        self.empty += int((lengths == 0).sum())
        self.total += int(lengths.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        self.cut += cut

    def to_json(self) -> dict[str, Any]:
        mean = self.total / self.rows if self.rows else 0.0
        lengths = {"rows": self.rows, "empty": self.empty, "cut": self.cut}
        return lengths | {"length_mean": mean, "length_max": self.longest}


def _is_value(found: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """bool [n]: neither missing nor out of range."""
    return (found != keys.MISSING) & (found != keys.OUT_OF_RANGE)
