"""Checked rows as blocks of keys and numbers. What the keys are is `features.keys`'s business; here only distinct texts are
hashed, and those once as long as they are remembered."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paraserve.components.features import keys
from paraserve.components.features.spec import CategoricalColumn, FeatureSpec, ListColumn
from paraserve.components.ingest.checks import Checked
from paraserve.components.records import Block

REMEMBERED = 1 << 18
"""Texts whose keys a column remembers; a full memory is emptied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distinct:
    """A column's values, each distinct text once."""

    texts: list[str]
    keys: npt.NDArray[np.int64]
    """int64 [distinct]."""
    codes: npt.NDArray[np.int32]
    """int32 [values]: where each value stands in `texts`."""

    @property
    def values(self) -> npt.NDArray[np.int64]:
        return self.keys[self.codes]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """int64 [distinct]: how often each text stands in the column."""
        return np.bincount(self.codes, minlength=len(self.texts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A block, and what its statistics need."""

    block: Block
    distinct: Mapping[str, Distinct]
    """For each categorical and list column, in a list each item that was kept or is missing, before the cut to `max_length`."""
    cut: Mapping[str, int]
    """For each list column how many lists were longer than `max_length`."""


class Packer:
    """Packs rows of one spec."""

    def __init__(self, spec: FeatureSpec):
        self.spec = spec
        self.memories = {column.name: _KeyMemory(spec, column) for column in spec.embedded}

    def pack(self, rows: Checked) -> Packed:
        distinct, lists, cut = {}, [], {}
        for column in self.spec.categorical:
            distinct[column.name] = self._distinct(column, rows.texts[column.column])
        for list_column in self.spec.lists:
            name, text = list_column.name, rows.texts[list_column.column]
            distinct[name], lengths, values, cut[name] = self._list(list_column, text)
            lists.append((lengths, values))
        ids = [distinct[column.name].values for column in self.spec.categorical]
        block = Block(
            labels=rows.labels,
            dense=rows.dense,
            ids=np.stack(ids, axis=1) if ids else np.zeros((len(rows), 0), np.int64),
            lists=tuple(lists),
        )
        return Packed(block=block, distinct=distinct, cut=cut)

    def _distinct(self, column: CategoricalColumn | ListColumn, text: pa.StringArray) -> Distinct:
        encoded = text.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        found = self.memories[column.name].keys_of(texts)
        return Distinct(texts=texts, keys=found, codes=encoded.indices.to_numpy())

    def _list(
        self, column: ListColumn, text: pa.StringArray
    ) -> tuple[Distinct, npt.NDArray[np.int32], npt.NDArray[np.int64], int]:
        """The items, row lengths (int32 [n]) and keys (int64 [sum of lengths]) of lists, and how many were cut."""
        missing = pc.is_in(text, value_set=pa.array(self.spec.missing_values, pa.string()))
        split = pc.split_pattern(pc.if_else(missing, "", text), column.separator)
        items = self._distinct(column, pc.ascii_trim_whitespace(split.flatten()))
        row = np.repeat(np.arange(len(text)), pc.list_value_length(split).to_numpy())
        present = items.values != keys.MISSING
        row, values = row[present], items.values[present]
        lengths = np.bincount(row, minlength=len(text))
        from_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(row))
        kept = np.minimum(lengths, column.max_length)
        return items, kept.astype(np.int32), values[from_end <= column.max_length], int((lengths > kept).sum())


class _KeyMemory(dict[str, int]):
    """The keys of a column's texts, reckoned when they are first asked for."""

    def __init__(self, spec: FeatureSpec, column: CategoricalColumn | ListColumn):
        self.missing, self.salt = frozenset(spec.missing_values), column.table
        self.known = None if column.values is None else frozenset(keys.keys_of(column.table, column.values).tolist())

    def keys_of(self, texts: list[str]) -> npt.NDArray[np.int64]:
        """int64 [texts]."""
        if len(self) > REMEMBERED:
            self.clear()
        return np.fromiter(map(self.__getitem__, texts), np.int64, len(texts))

    def __missing__(self, text: str) -> int:
        key = keys.MISSING if text in self.missing else keys.key_of(self.salt, text)
        if self.known is not None and key != keys.MISSING and key not in self.known:
            key = keys.OUT_OF_RANGE
        self[text] = key
        return key
