"""Dynamic embedding tables: one server's part of the tables of equal row width, from TensorFlow's own operations.

A key gets a row when it is first seen (or at its n-th sighting), as long as its table has room; until then it uses the row that
its table shares. No key ever has two rows, whoever races, and memory is used for keys that were seen, not for the budget.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from paraserve.components.train.cluster import PARAMETER_SERVER, device
from paraserve.components.train.embedding.buckets import BUCKETS, buckets_held
from paraserve.components.train.embedding.index import UNKNOWN, KeyIndex
from paraserve.components.train.embedding.initial import initial_rows
from paraserve.components.train.embedding.limits import SlotRanges, TableLimits
from paraserve.components.train.embedding.mutex import Mutex
from paraserve.components.train.embedding.reserved import own_key
from paraserve.components.train.embedding.sightings import Sightings
from paraserve.components.train.embedding.slots import SlotPool, reserved_variable
from paraserve.components.train.optimizers import Optimizer, Slotted


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

    values: tf.Tensor
    """float32 [n, width]."""
    optimizer: Mapping[str, tf.Tensor]
    """The optimizer's slots, by name, float32 [n, width] or [n]."""
    frequency: tf.Tensor
    """int64 [n]."""
    last_seen: tf.Tensor
    """int64 [n], a step of the run."""


class DynamicShard:
    """The tables of one row width on one parameter server. Make it in eager mode, while the server is alive.

    All methods run their operations on the server, whatever the device of the caller's scope. `lookup`, `find` and `touch` may
    stand in a worker's function, also in its loops; the others are called by the coordinator while no worker runs.
    """

    def __init__(
        self,
        *,
        server: int,
        servers: int,
        sharding: str,
        tables: Sequence[TableLimits],
        rows: RowFormat,
        optimizer: Optimizer,
    ):
        """Raises ValueError for budgets that do not fit (SlotRanges.of) or that the server cannot reserve."""
        self.device = device(PARAMETER_SERVER, server)
        self.tables = tuple(tables)
        self.ranges = SlotRanges.of(tables, buckets_held(server, servers, sharding), BUCKETS)
        self._format, self._optimizer = rows, optimizer
        self._admits_later = any(table.admit_after > 1 for table in tables)
        capacity = self.ranges.capacity
        with tf.device(self.device):
            self._index, self._pool, self._sightings, self._mutex = (
                KeyIndex(),
                SlotPool(self.ranges),
                Sightings(capacity),
                Mutex(),
            )
            variable = reserved_variable([capacity, rows.width], tf.float32)
            slots = {
                s.name: reserved_variable([capacity] if s.per_row else [capacity, rows.width], tf.float32)
                for s in optimizer.slots
            }
            self.slotted = Slotted(variable, slots)
            self._refused = tf.Variable(tf.zeros(len(tables), tf.int64), trainable=False)
            self._candidates = tf.Variable(0, trainable=False)
        self._initialise_shared()

    @tf.autograph.experimental.do_not_convert
    def lookup(self, keys: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The slots, int32 [n], of distinct keys, int64 [n], of the tables numbered `tables` [n]; for training.

        `counts` [n] says how often each key stands in the batch, `step` which step of the run this is. A key that has no row
        gets one, or, where it may not have one yet, its table's shared slot; that slot may stand in the result many times.
        """
        with tf.device(self.device):
            values = self._index.find(keys)
            # With no key unknown, which is nearly always, nobody waits for a lock here.
            slots = tf.cond(
                tf.reduce_min(values) < 0,
                lambda: self._resolve(values, keys, tf.cast(tables, tf.int32), tf.cast(counts, tf.int32)),
                lambda: values,
            )
            self.touch(slots, counts, step)
            return slots

    @tf.autograph.experimental.do_not_convert
    def find(self, keys: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
        """The same without a change: a key without a row gets its table's shared slot."""
        with tf.device(self.device):
            values = self._index.find(keys)
            return tf.where(values < 0, tf.cast(tables, tf.int32), values)

    @tf.autograph.experimental.do_not_convert
    def touch(self, slots: tf.Tensor, counts: tf.Tensor, step: tf.Tensor) -> None:
        """Counts `counts` [n] sightings of distinct slots, int32 [n], at `step`. Those of shared slots mean nothing."""
        with tf.device(self.device):
            self._sightings.add(slots, counts, step)

    def _resolve(self, values: tf.Tensor, keys: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """`values` with a slot wherever there was none."""
        with tf.device(self.device):
            missing = tf.where(values < 0)[:, 0]
            keys, tables, counts = (tf.gather(part, missing) for part in (keys, tables, counts))
            has_room = tf.gather(self._pool.room() > 0, tables)
            slots = tf.cond(
                tf.reduce_any(has_room),
                lambda: self._mutex.held(lambda: self._admit(keys, tables, counts)),
                # When all of them are full there is nothing to race for.
                lambda: self._refuse(tables, tf.ones_like(tables, tf.bool)),
            )
            return tf.tensor_scatter_nd_update(values, missing[:, None], slots)

    def _refuse(self, tables: tf.Tensor, refused: tf.Tensor) -> tf.Tensor:
        """Counts the refused; returns the shared slots, int32 [n]."""
        counts = tf.math.unsorted_segment_sum(tf.cast(refused, tf.int64), tables, len(self.tables))
        with tf.device(self.device), tf.control_dependencies([self._refused.assign_add(counts).op]):
            return tf.identity(tables)

    def _admit(self, keys: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Gives rows to those of the keys that may have one, under the lock; returns a slot for each."""
        with tf.device(self.device):
            values = self._index.find(keys)  # again: another worker may have been first
            unknown = values < 0
            before = tf.where(unknown, UNKNOWN - values, 0)
            needed = tf.gather(tf.constant([table.admit_after for table in self.tables]), tables)
            wants = unknown & (before + counts >= needed)
            has_room = tf.gather(self._pool.room() > 0, tables)
            slots, placed = self._pool.take(tables, wants)
            new_keys, new_slots, seen_before = _masked(placed, keys, slots, before)
            filled = self._start(new_keys, new_slots, seen_before)
            # Last of all: who finds a key finds its row ready.
            with tf.control_dependencies(filled):
                inserted = self._index.insert(new_keys, new_slots)
            counted = self._count_candidates(keys, before, before + counts, placed, unknown & ~wants & has_room)
            refused = self._refuse(tables, unknown & ~placed & (wants | ~has_room))
            with tf.control_dependencies([inserted, *counted, refused]):
                return tf.where(unknown, slots, values)

    def _start(self, keys: tf.Tensor, slots: tf.Tensor, frequency: tf.Tensor) -> list[tf.Operation]:
        """Sets the rows of new keys to their start."""
        written = [_scatter(self.slotted.variable, slots, self._format.initial(keys))]
        for slot in self._optimizer.slots:
            shape = [tf.size(slots)] if slot.per_row else [tf.size(slots), self._format.width]
            written.append(_scatter(self.slotted.slots[slot.name], slots, tf.fill(shape, slot.start)))
        return [*written, self._sightings.write(slots, frequency, tf.zeros_like(frequency))]

    def _count_candidates(
        self, keys: tf.Tensor, before: tf.Tensor, now: tf.Tensor, placed: tf.Tensor, waiting: tf.Tensor
    ) -> list[tf.Operation]:
        """Writes down the sightings of keys that wait for a row, of as many keys as the server has rows."""
        if not self._admits_later:
            return []
        was = before > 0
        room = self.ranges.capacity - self._candidates.read_value()
        first = waiting & ~was
        kept = waiting & (was | (tf.cumsum(tf.cast(first, tf.int32)) <= room))
        inserted = self._index.insert(*_masked(kept, keys, UNKNOWN - now))
        change = tf.reduce_sum(tf.cast(kept & first, tf.int32)) - tf.reduce_sum(tf.cast(placed & was, tf.int32))
        return [inserted, self._candidates.assign_add(change).op]

    def _initialise_shared(self) -> None:
        @functools.partial(tf.function, autograph=False)
        def initialise() -> None:
            with tf.device(self.device):
                keys = tf.constant([own_key(table.name, SHARED) for table in self.tables], tf.int64)
                self._start(keys, tf.range(len(self.tables)), tf.zeros(len(self.tables), tf.int32))

        initialise()


SHARED = -1
"""Stands for a table's shared row, where `own_key` gives it a key to be initialised from."""


def _masked(mask: tf.Tensor, *parts: tf.Tensor) -> list[tf.Tensor]:
    places = tf.where(mask)[:, 0]
    return [tf.gather(part, places) for part in parts]


def _scatter(variable: tf.Variable, slots: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=slots, updates=values)
