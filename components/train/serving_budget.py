"""Which rows of the tables the served model holds, so that it fits `serving_max_bytes`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.serving_rows import RowStorage

KEY_BYTES = 8
Contents = StaticContents | TableContents


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedRows:
    """What the served model takes of one group of tables."""

    contents: Contents
    storage: RowStorage
    kept: npt.NDArray[np.int64]
    """Positions of the keys that it holds, in the order of the keys. Of static tables it holds all rows, and this is empty."""

    @property
    def rows(self) -> int:
        """That it holds, without defaults."""
        return self.contents.rows if isinstance(self.contents, StaticContents) else len(self.kept)

    @property
    def bytes(self) -> int:
        """Of the rows, their keys and the defaults."""
        return _least_bytes(self.contents, self.storage) + len(self.kept) * _key_bytes(self.storage)

    @property
    def whole(self) -> bool:
        """Whether nothing was left out or rounded."""
        everything = isinstance(self.contents, StaticContents) or len(self.kept) == self.contents.rows
        return everything and self.storage.dtype == "float32"

    def coverage(self) -> dict[str, float]:
        """For each dynamic table the share of its keys' sightings in training that were of kept keys."""
        contents = self.contents
        if isinstance(contents, StaticContents):
            return {}
        tables = len(contents.tables)
        seen = np.bincount(contents.table, contents.frequency, tables)
        kept = np.bincount(contents.table[self.kept], contents.frequency[self.kept], tables)
        return {name: float(k / s) if s else 1.0 for name, k, s in zip(contents.tables, kept, seen, strict=True)}


def choose_rows(
    contents: Sequence[Contents], linear: bool, dtype: str, max_bytes: int, dense_bytes: int
) -> tuple[ServedRows, ...]:
    """The rows that fit: all of static tables and all defaults, then the keys seen most often for the bytes they take.

    Args:
        linear: whether a row's last number is a linear weight.
        dtype: of the stored rows, one of config.SERVING_DTYPES.
        max_bytes: for all tables and the dense weights together; 0 has no limit.
        dense_bytes: of the dense weights.

    Raises ValueError when what cannot be left out does not fit.
    """
    storages = [RowStorage(dtype=dtype, width=c.width, linear=linear) for c in contents]
    least = dense_bytes + sum(map(_least_bytes, contents, storages))
    if max_bytes and least > max_bytes:
        smaller = "" if dtype == "int8" else "; or set `serving_dtype` to a smaller one (int8 is the smallest)"
        raise ValueError(
            f"`serving_max_bytes` is {max_bytes}, and the dense weights, static tables and default rows alone take {least} as "
            f"{dtype}: raise it to more than that, or give large tables `max_keys` instead of `rows` in the spec{smaller}"
        )
    dynamic = [(c, s) for c, s in zip(contents, storages, strict=True) if isinstance(c, TableContents)]
    chosen = iter(_most_frequent(dynamic, max_bytes - least if max_bytes else None))
    nothing = np.empty(0, np.int64)
    kept = [nothing if isinstance(c, StaticContents) else next(chosen) for c in contents]
    return tuple(ServedRows(contents=c, storage=s, kept=k) for c, s, k in zip(contents, storages, kept, strict=True))


def _key_bytes(storage: RowStorage) -> int:
    return KEY_BYTES + storage.bytes


def _least_bytes(contents: Contents, storage: RowStorage) -> int:
    """What a group takes when it holds no more than it must."""
    rows = contents.rows if isinstance(contents, StaticContents) else len(contents.tables)
    return rows * storage.bytes


def _most_frequent(groups: Sequence[tuple[TableContents, RowStorage]], room: int | None) -> list[npt.NDArray[np.int64]]:
    """For each group the positions of the keys that fit into `room` bytes (None: all), in the order of the keys."""
    if room is None or sum(c.rows * _key_bytes(s) for c, s in groups) <= room:
        return [np.argsort(contents.keys) for contents, _ in groups]
    keys = np.concatenate([contents.keys for contents, _ in groups])
    group = np.concatenate([np.full(contents.rows, i) for i, (contents, _) in enumerate(groups)])
    worth = np.concatenate([contents.frequency / _key_bytes(storage) for contents, storage in groups])
    # Of keys that are worth the same, the lower ones: the same in each export of the same tables.
    order = np.lexsort((group, keys, -worth))
    used = np.cumsum(np.array([_key_bytes(storage) for _, storage in groups])[group[order]])
    taken = np.sort(order[: np.searchsorted(used, room, side="right")])
    starts = np.cumsum([0, *(contents.rows for contents, _ in groups)])
    parts = [taken[group[taken] == i] - starts[i] for i in range(len(groups))]
    return [part[np.argsort(contents.keys[part])] for part, (contents, _) in zip(parts, groups, strict=True)]
