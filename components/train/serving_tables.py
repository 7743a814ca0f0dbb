"""The embedding tables of a served model, from TensorFlow's own operations: no library has to be loaded to serve it."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.embedding.layout import GroupLayout, GroupValues, Places
from paraserve.components.train.serving_budget import ServedRows
from paraserve.components.train.serving_rows import StoredRows

CHUNK_BYTES = 64 << 20
"""Rows come from the servers, and are float32, in chunks of about this size."""


class ServedTables(tf.Module):
    """A group of tables: of static ones all rows; of dynamic ones the kept keys, and a default for every other key.

    The kept keys stand in order, the row of the key at position i is row i, and the defaults stand behind them. A search in the
    sorted keys takes 8 bytes a key, where a hash table takes 30 to 60 and has to be filled when the model is loaded.
    """

    def __init__(self, layout: GroupLayout, served: ServedRows):
        super().__init__()
        self._layout = layout
        contents = served.contents
        if isinstance(contents, StaticContents):
            self.keys = None
            self.rows = StoredRows(served.storage, contents.rows, _static_rows(contents))
        else:
            assert contents.tables == tuple(table.name for table in layout.tables)
            self._kept = len(served.kept)
            self.keys = tf.Variable(contents.keys[served.kept], trainable=False)
            count = self._kept + len(contents.tables)
            self.rows = StoredRows(served.storage, count, _dynamic_rows(contents, served.kept))

    def values(self, ids: tf.Tensor, spec: FeatureSpec) -> GroupValues:
        """The rows of a batch's ids, int64 [examples, spec.id_width]."""
        places = self._layout.places(ids, spec)
        return self.rows.values(places, places.numbers if self.keys is None else self._search(places))

    def _search(self, places: Places) -> tf.Tensor:
        """int32 [places]: the number of each place's row."""
        defaults = self._kept + places.tables()
        if not self._kept:
            return defaults
        # A key above all others is searched for behind the last one.
        found = tf.minimum(tf.searchsorted(self.keys, places.numbers), self._kept - 1)
        return tf.where(tf.equal(tf.gather(self.keys, found), places.numbers), found, defaults)


def _static_rows(contents: StaticContents) -> Iterator[npt.NDArray[np.float32]]:
    for start, stop in _chunks(contents.rows, contents.width):
        yield contents.read(np.arange(start, stop))


def _dynamic_rows(contents: TableContents, kept: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.float32]]:
    for start, stop in _chunks(len(kept), contents.width):
        yield contents.read(kept[start:stop])
    yield contents.defaults


def _chunks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    size = max(1, CHUNK_BYTES // (4 * width))
    for start in range(0, rows, size):
        yield start, min(start + size, rows)
