"""Scores by the values of a categorical column: where a model is good on average, and poor for some."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from paraserve.components import storage
from paraserve.components.evaluate.metrics import Labels, Probabilities
from paraserve.components.features import keys
from paraserve.components.features.spec import FeatureSpec

STATISTICS = "statistics.json"
"""What ingest wrote beside the manifest; it knows the texts behind the keys."""
SHOWN = 10
"""Values of a column that are looked at one by one, the most frequent ones; the rest is one slice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """The examples with one value in one column."""

    column: str
    value: str
    """As it stands in the log, or (other), (missing), (out of range)."""
    examples: int
    positives: int
    auc: float | None
    """None where only one label occurs."""
    mean_prediction: float

    @property
    def label_rate(self) -> float:
        return self.positives / self.examples

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def check_columns(columns: Sequence[str], spec: FeatureSpec) -> None:
    """Raises ValueError unless all are categorical columns of the data."""
    known = [column.name for column in spec.categorical]
    for name in columns:
        if name not in known:
            raise ValueError(f"slice column '{name}' is no categorical column; known are {', '.join(known) or 'none'}")


def read_names(shards: str, columns: Sequence[str]) -> dict[str, dict[int, str]]:
    """For each column the texts of its most frequent values, by key. Raises ValueError when ingest left no statistics."""
    if not columns:
        return {}
    try:
        statistics = json.loads(storage.read_bytes(storage.join(shards, STATISTICS)))["categorical"]
    except FileNotFoundError as error:
        raise ValueError(f"there is no {STATISTICS} at {shards}, which names the slices; ingest the data again") from error
    tops = {name: statistics[name]["top"] for name in columns}
    return {name: {int(entry["key"]): str(entry["value"]) for entry in top[:SHOWN]} for name, top in tops.items()}


def score_slices(
    labels: Labels,
    probabilities: Probabilities,
    columns: Mapping[str, npt.NDArray[np.int64]],
    names: Mapping[str, Mapping[int, str]],
) -> tuple[Slice, ...]:
    """Scores each slice that has examples.

    Args:
        labels: float32 [n]; probabilities: float64 [n], usable.
        columns: int64 [n], the keys of each column.
        names: for each column the texts of the keys that get a slice of their own (see `read_names`).
    """
    return tuple(
        _score(column, value, labels[rows], probabilities[rows])
        for column, keys_ in columns.items()
        for value, rows in _rows(keys_, names[column])
        if rows.any()
    )


def _rows(column: npt.NDArray[np.int64], names: Mapping[int, str]) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    named = {**names, keys.MISSING: "(missing)", keys.OUT_OF_RANGE: "(out of range)"}
    for key, value in named.items():
        yield value, column == key
    yield "(other)", ~np.isin(column, list(named))


def _score(column: str, value: str, labels: Labels, probabilities: Probabilities) -> Slice:
    positives = int(labels.sum())
    return Slice(
        column=column,
        value=value,
        examples=len(labels),
        positives=positives,
        auc=float(roc_auc_score(labels, probabilities)) if 0 < positives < len(labels) else None,
        mean_prediction=float(probabilities.mean()),
    )
