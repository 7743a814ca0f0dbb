"""The rows of a server's slots, with what the optimizer keeps of them and how often they were seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.train.embedding.initial import initial_rows
from paraserve.components.train.embedding.sightings import Sightings
from paraserve.components.train.embedding.slots import reserved_variable
from paraserve.components.train.optimizers import Optimizer, Slot, Slotted


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """What a row is, and how it starts."""

    width: int
    """Length of a row."""
    linear: bool
    """Whether a row's last number is a linear weight, which starts at 0."""
    deviation: float
    """Standard deviation of the other numbers at the start."""
    seed: int

    def initial(self, keys: tf.Tensor) -> tf.Tensor:
        """float32 [n, width], the first rows of the keys, int64 [n]."""
        rows = initial_rows(keys, self.width - int(self.linear), self.deviation, self.seed)
        return tf.pad(rows, [[0, 0], [0, int(self.linear)]])


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows with all that belongs to them, one after the other."""

    values: npt.NDArray[np.float32]
    """[n, width]."""
    optimizer: Mapping[str, npt.NDArray[np.float32]]
    """The optimizer's slots, by name, [n, width] or [n]."""
    frequency: npt.NDArray[np.int64]
    """[n], below 2^32."""
    last_seen: npt.NDArray[np.int64]
    """[n], steps of the run, below 2^32."""

    @classmethod
    def of(cls, parts: Sequence[tf.Tensor], names: Sequence[str]) -> "Rows":
        """From RowStore.read's tensors, and the names of the optimizer's slots."""
        values, frequency, last_seen, *optimizer = (part.numpy() for part in parts)
        by_name = dict(zip(names, optimizer, strict=True))
        return cls(values=values, optimizer=by_name, frequency=frequency, last_seen=last_seen)

    def tensors(self, names: Sequence[str]) -> list[tf.Tensor]:
        """For RowStore.write."""
        parts = [self.values, self.frequency, self.last_seen, *(self.optimizer[name] for name in names)]
        return [tf.constant(part) for part in parts]


class RowStore:
    """The rows of slots 0 to `capacity` - 1, on the device of the scope that it is made in; the methods run there.

    A row is undefined until it is started or written.
    """

    def __init__(self, capacity: int, row: RowFormat, optimizer: Optimizer):
        self._format, self._slots = row, optimizer.slots
        variable = reserved_variable([capacity, row.width], tf.float32)
        slots = {slot.name: reserved_variable(self._shape(slot, capacity), tf.float32) for slot in optimizer.slots}
        self.slotted = Slotted(variable, slots)
        self.sightings = Sightings(capacity)

    @property
    def slot_names(self) -> list[str]:
        return [slot.name for slot in self._slots]

    def signature(self) -> list[tf.TensorSpec]:
        """Of what `read` returns and `write` takes."""
        integers = tf.TensorSpec([None], tf.int64)
        slots = [tf.TensorSpec(self._shape(slot, None), tf.float32) for slot in self._slots]
        return [tf.TensorSpec([None, self._format.width], tf.float32), integers, integers, *slots]

    def start(self, slots: tf.Tensor, keys: tf.Tensor, frequency: tf.Tensor) -> tf.Operation:
        """Gives distinct slots, int32 [n], the first rows of the keys, int64 [n], and a frequency, int [n]."""
        count = tf.size(slots)
        begun = [tf.fill(self._shape(slot, count), slot.start) for slot in self._slots]
        return self.write(slots, [self._format.initial(keys), frequency, tf.zeros_like(frequency), *begun])

    def write(self, slots: tf.Tensor, parts: Sequence[tf.Tensor]) -> tf.Operation:
        """Sets distinct slots, int32 [n], to `signature`'s tensors."""
        values, frequency, last_seen, *optimizer = parts
        variables = [self.slotted.variable, *(self.slotted.slots[name] for name in self.slot_names)]
        written = [
            tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=slots, updates=part)
            for variable, part in zip(variables, [values, *optimizer], strict=True)
        ]
        return tf.group(*written, self.sightings.write(slots, frequency, last_seen))

    def read(self, slots: tf.Tensor) -> list[tf.Tensor]:
        """`signature`'s tensors of slots, int32 [n]."""
        values, *optimizer = (
            tf.raw_ops.ResourceGather(resource=variable.handle, indices=slots, dtype=tf.float32)
            for variable in [self.slotted.variable, *(self.slotted.slots[name] for name in self.slot_names)]
        )
        return [values, *self.sightings.read(slots), *optimizer]

    def _shape(self, slot: Slot, count: Any) -> list[Any]:
        return [count] if slot.per_row else [count, self._format.width]
