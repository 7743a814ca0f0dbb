"""What the embedding tables hold at the end of training: what an export reads, without TensorFlow.

Rows are read when they are wanted: all rows of the servers may be more than the coordinator's memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RARE_ROWS = 10_000
"""Rows that are averaged for a default: the mean of more would be no better."""

RowReader = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]
"""Returns rows, float32 [n, width], by their positions, int64 [n]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticContents:
    """A group of static tables (see embedding.layout)."""

    name: str
    """Of its layout."""
    width: int
    """Length of a row."""
    rows: int
    """Of all tables together."""
    read: RowReader
    """By the number of a row, 0 to `rows` - 1."""


@dataclass(frozen=True, kw_only=True)
class TableContents:
    """A group of dynamic tables: a key has a row of its own, or uses the default of its table."""

    name: str
    """Of its layout."""
    width: int
    """Length of a row."""
    tables: tuple[str, ...]
    """Their names, in the layout's order."""
    keys: npt.NDArray[np.int64]
    """[n], those with a row, distinct over all tables; reserved keys as each table's own (embedding.reserved)."""
    table: npt.NDArray[np.integer]
    """[n], the number of each key's table."""
    frequency: npt.NDArray[np.int64]
    """[n], how often each key was seen in training."""
    defaults: npt.NDArray[np.float32]
    """[tables, width], the row of a key that has none (`default_row`)."""
    read: RowReader
    """By position in `keys`."""

    def __post_init__(self) -> None:
        assert self.keys.shape == self.table.shape == self.frequency.shape
        assert self.defaults.shape == (len(self.tables), self.width)

    @property
    def rows(self) -> int:
        return len(self.keys)


def rarest(keys: npt.NDArray[np.int64], frequency: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Positions, int64, of the least frequent quarter of a table's keys, both [n]: at most RARE_ROWS, in the order of the keys
    where they were seen equally often."""
    return np.lexsort((keys, frequency))[: min(-(-len(keys) // 4), RARE_ROWS)]


def default_row(
    shared: npt.NDArray[np.float32], start: npt.NDArray[np.float32], rare: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """The row of a table's unknown keys: float32 [width].

    Args:
        shared: [servers, width], the row of each server that keys without one share.
        start: [width], or [servers, width], what the shared rows were before training.
        rare: [n, width], the rows of the `rarest` keys.

    Returns:
        the mean of the shared rows that training moved: they learned from keys that waited for a row or found the table full,
        just such as are unknown later. Where no key ever did so, the mean of the rare rows: a key that training saw once or
        twice says most of those that it did not see at all. Without such keys, the start.
    """
    trained = shared[np.any(shared != start, axis=1)]
    for rows in (trained, rare):
        if len(rows):
            return rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return shared.mean(axis=0)
