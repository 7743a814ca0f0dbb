"""How embedding rows are kept in a served model: as they are, in half the bytes, or in a quarter of them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.train.embedding.layout import GroupValues, Places

LARGEST = 127
"""Of the numbers that int8 rows use: symmetric, so that 0 stays 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowStorage:
    """The form of one kind of rows."""

    dtype: str
    """config.SERVING_DTYPES: float32; bfloat16, rounded to 8 significant bits; int8, in steps of 1/127 of a row's largest
    number, which is kept with each row."""
    width: int
    """Length of a row."""
    linear: bool
    """Whether a row's last number is a linear weight. It goes straight into the logit and may be far larger or smaller than the
    rest of its row, so that int8 keeps it in float32 beside the row, and no step is computed from it."""

    @property
    def bytes(self) -> int:
        """Of one row with what is kept beside it."""
        return self._stored_width * self._numbers.itemsize + 4 * self.beside

    @property
    def beside(self) -> int:
        """float32 numbers that each row needs beside it: its step, and its linear weight."""
        return 1 + int(self.linear) if self.dtype == "int8" else 0

    def encode(self, rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32]]:
        """What is stored of rows, float32 [n, width]: [n, stored width] in `dtype`, and float32 [n, beside]."""
        if self.dtype != "int8":
            return rows.astype(self._numbers), np.empty((len(rows), 0), np.float32)
        numbers = rows[:, : self._stored_width]
        steps = np.abs(numbers).max(axis=1, keepdims=True) / np.float32(LARGEST)
        stored = np.rint(numbers / np.where(steps == 0, 1, steps)).astype(np.int8)
        return stored, np.concatenate([steps, rows[:, self._stored_width :]], axis=1)

    def decode(self, stored: tf.Tensor, beside: tf.Tensor | None) -> tf.Tensor:
        """The rows, float32 [n, width], to within half a step of what they were."""
        rows = tf.cast(stored, tf.float32)
        return rows if beside is None else tf.concat([rows * beside[:, :1], beside[:, 1:]], axis=1)

    def empty(self, count: int) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32]]:
        """Room for what `encode` returns of `count` rows."""
        return np.empty((count, self._stored_width), self._numbers), np.empty((count, self.beside), np.float32)

    @property
    def _stored_width(self) -> int:
        return self.width - int(self.linear and self.dtype == "int8")

    @property
    def _numbers(self) -> np.dtype[np.generic]:
        return np.dtype(tf.as_dtype(self.dtype).as_numpy_dtype)


class StoredRows(tf.Module):
    """Rows in the served graph."""

    def __init__(self, storage: RowStorage, count: int, chunks: Iterable[npt.NDArray[np.float32]]):
        """`chunks` has `count` rows, float32 [n, width] each; one chunk at a time is in memory as float32."""
        super().__init__()
        self._storage = storage
        stored, beside = storage.empty(count)
        start = 0
        for chunk in chunks:
            stop = start + len(chunk)
            stored[start:stop], beside[start:stop] = storage.encode(chunk)
            start = stop
        assert start == count
        self.stored = tf.Variable(stored, trainable=False)
        self.beside = tf.Variable(beside, trainable=False) if storage.beside else None

    def values(self, places: Places, numbers: tf.Tensor) -> GroupValues:
        """The rows of the numbers, int [places], at the places; only these rows are made float32, each once."""
        if self._storage.dtype == "float32":
            return places.indexed(numbers).values(lambda numbers: tf.gather(self.stored, numbers))
        wanted, index = tf.unique(numbers)
        beside = None if self.beside is None else tf.gather(self.beside, wanted)
        rows = self._storage.decode(tf.gather(self.stored, wanted), beside)
        return places.indexed(index).values(lambda numbers: tf.gather(rows, numbers))
