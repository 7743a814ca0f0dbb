"""Dynamic embedding tables: one server's part of the tables of equal row width, from TensorFlow's own operations.

A key gets a row when it is first seen (or at its n-th sighting), as long as its table has room; until then it uses the row that
its table shares. No key ever has two rows, whoever races, and memory is used for keys that were seen, not for the budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.train.cluster import PARAMETER_SERVER, device
from paraserve.components.train.embedding.buckets import BUCKETS, buckets_held
from paraserve.components.train.embedding.eviction import overfull, victims
from paraserve.components.train.embedding.index import UNKNOWN, KeyIndex
from paraserve.components.train.embedding.limits import SlotRanges, TableLimits
from paraserve.components.train.embedding.mutex import Mutex
from paraserve.components.train.embedding.reserved import shared_key
from paraserve.components.train.embedding.slots import SlotPool
from paraserve.components.train.embedding.store import RowFormat, Rows, RowStore
from paraserve.components.train.optimizers import Optimizer, Slotted

EXPORT_BUCKETS = 2**24
"""Buckets of the index that one call reads: it brings up to 270 MB to the coordinator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardStatistics:
    """What a server holds of its tables, and what it did since it was made; int64 [tables] each."""

    keys: npt.NDArray[np.int64]
    """With a row of their own."""
    refused: npt.NDArray[np.int64]
    """Times that a key of a batch got the shared row because its table was full."""
    evicted: npt.NDArray[np.int64]
    candidates: int
    """Keys of all tables that wait for their row."""


class DynamicShard:
    """The tables of one row width on one parameter server. Make it in eager mode, while every server is alive.

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
        self._admits_later = any(table.admit_after > 1 for table in tables)
        with tf.device(self.device):
            self._index, self._pool, self._mutex = KeyIndex(), SlotPool(self.ranges), Mutex()
            self._store = RowStore(self.ranges.capacity, rows, optimizer)
            self._refused, self._evicted = (tf.Variable(tf.zeros(len(tables), tf.int64), trainable=False) for _ in range(2))
            self._candidates = tf.Variable(0, trainable=False)
        self._trace()
        self._traced["start_shared"]()

    @property
    def slotted(self) -> Slotted:
        """The rows by slot, with the optimizer's slots."""
        return self._store.slotted

    @tf.autograph.experimental.do_not_convert
    def lookup(self, keys: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The slots, int32 [n], of distinct keys, int64 [n], of the tables numbered `tables` [n]; for training.

        `counts` [n] says how often each key stands in the batch, `step` which step of the run this is. A key that has no row
        gets one, or, where it may not have one yet, its table's shared slot; that slot may stand in the result many times.
        """
        with tf.device(self.device):
            values = self._index.find(keys)
            # With no key unknown nobody waits for a lock here.
            slots = tf.cond(
                tf.reduce_min(values) < 0,
                lambda: self._resolved(values, keys, tf.cast(tables, tf.int32), tf.cast(counts, tf.int32)),
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
            self._store.sightings.add(slots, counts, step)

    def evict(self, step: int) -> npt.NDArray[np.int64]:
        """Takes their rows from the keys that are to go at `step` (TableLimits.evict); returns how many of each table.

        When the keys that wait for a row use half of their bound, they are forgotten.
        """
        evicted: npt.NDArray[np.int64] = self._traced["evict"](tf.constant(step, tf.int64)).numpy()
        return evicted

    def statistics(self) -> ShardStatistics:
        keys, refused, evicted, candidates = (part.numpy() for part in self._traced["statistics"]())
        return ShardStatistics(keys=keys.astype(np.int64), refused=refused, evicted=evicted, candidates=int(candidates))

    def export_keys(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The keys with a row, int64 [n], their slots, int32 [n], and the numbers of their tables, int32 [n]."""
        starts = range(0, int(self._traced["buckets"]()), EXPORT_BUCKETS)
        parts = [[part.numpy() for part in self._traced["export"](tf.constant(start, tf.int64))] for start in starts]
        keys, slots, tables = (np.concatenate(column) for column in zip(*parts, strict=True))
        return keys, slots, tables

    def read(self, slots: npt.NDArray[np.int32]) -> Rows:
        """What stands in slots, int32 [n]; those below the number of tables are the shared ones."""
        return Rows.of(self._traced["read"](tf.constant(slots)), self._store.slot_names)

    def write(self, slots: npt.NDArray[np.int32], rows: Rows) -> None:
        """Overwrites distinct slots that are in use, int32 [n]."""
        self._traced["write"](tf.constant(slots), *rows.tensors(self._store.slot_names))

    def restore(self, keys: npt.NDArray[np.int64], tables: npt.NDArray[np.int32], rows: Rows) -> int:
        """Gives distinct keys, int64 [n], that are not yet there, of tables numbered `tables`, int32 [n], their rows back.

        Returns how many: whatever admission says, but the last ones of a table that has no room get none.
        """
        tensors = rows.tensors(self._store.slot_names)
        return int(self._traced["restore"](tf.constant(keys), tf.constant(tables), *tensors))

    def forget(self) -> None:
        """Takes their rows from all keys; the shared rows start anew."""
        self._traced["forget"]()
        self._traced["start_shared"]()

    def _resolve(self, values: tf.Tensor, keys: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """`values` with a slot wherever there was none."""
        with tf.device(self.device):
            missing = tf.where(values < 0)[:, 0]
            keys, tables, counts = (tf.gather(part, missing) for part in (keys, tables, counts))
            slots = tf.cond(
                tf.reduce_any(tf.gather(self._pool.room() > 0, tables)),
                lambda: self._mutex.held(lambda: self._admit(keys, tables, counts)),
                # When all of them are full there is nothing to race for.
                lambda: self._refuse(tables, tf.ones_like(tables, tf.bool)),
            )
            return tf.tensor_scatter_nd_update(values, missing[:, None], slots)

    def _refuse(self, tables: tf.Tensor, refused: tf.Tensor) -> tf.Tensor:
        """Counts the refused; returns the shared slots, int32 [n]."""
        with tf.device(self.device):
            counts = tf.math.unsorted_segment_sum(tf.cast(refused, tf.int64), tables, len(self.tables))
            with tf.control_dependencies([self._refused.assign_add(counts).op]):
                return tf.identity(tables)

    def _admit(self, keys: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Gives rows to those of the keys that may have one, under the lock; returns a slot for each."""
        with tf.device(self.device):
            values = self._index.find(keys)  # again: another worker may have been first
            unknown = values < 0
            before = tf.where(unknown, UNKNOWN - values, 0)
            wants = unknown & (before + counts >= tf.gather(tf.constant([t.admit_after for t in self.tables]), tables))
            has_room = tf.gather(self._pool.room() > 0, tables)
            slots, placed = self._pool.take(tables, wants)
            new_keys, new_slots, seen_before = _masked(placed, keys, slots, before)
            # A key is inserted last of all: who finds it finds its row ready.
            with tf.control_dependencies([self._store.start(new_slots, new_keys, seen_before)]):
                inserted = self._index.insert(new_keys, new_slots)
            waiting = self._wait(keys, before, before + counts, placed, unknown & ~wants & has_room)
            refused = self._refuse(tables, unknown & ~placed & (wants | ~has_room))
            with tf.control_dependencies([inserted, *waiting, refused]):
                return tf.where(unknown, slots, values)

    def _wait(
        self, keys: tf.Tensor, before: tf.Tensor, now: tf.Tensor, placed: tf.Tensor, waiting: tf.Tensor
    ) -> list[tf.Operation]:
        """Writes down the sightings of keys that wait for a row, of as many keys as the server has rows."""
        if not self._admits_later:
            return []
        first = waiting & tf.equal(before, 0)
        room = self.ranges.capacity - self._candidates.read_value()
        kept = waiting & (~first | (tf.cumsum(tf.cast(first, tf.int32)) <= room))
        inserted = self._index.insert(*_masked(kept, keys, UNKNOWN - now))
        change = _count(kept & first) - _count(placed & (before > 0))
        return [inserted, self._candidates.assign_add(change).op]

    def _trace(self) -> None:
        """Makes the functions now, while every server is alive: tracing registers a function with each."""
        number, slots, keys = tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)
        # Not inlined: where no key is unknown, its operations would still be passed over one by one in every step.
        resolve = tf.function(self._resolve, autograph=False, experimental_attributes={"_noinline": True})
        self._resolved = resolve.get_concrete_function(slots, keys, slots, slots)
        state = self._store.signature()
        self._traced = {
            "start_shared": self._concrete(self._start_shared),
            "evict": self._concrete(self._evict, number),
            "statistics": self._concrete(self._count_all),
            "forget": self._concrete(self._forget),
            "buckets": self._concrete(self._index.buckets),
            "export": self._concrete(self._export, number),
            "read": self._concrete(self._store.read, slots),
            "write": self._concrete(lambda slots, *parts: self._store.write(slots, parts), slots, *state),
            "restore": self._concrete(self._restore, keys, slots, *state),
        }

    def _concrete(self, function: Callable[..., Any], *signature: tf.TensorSpec) -> Callable[..., Any]:
        def on_server(*arguments: tf.Tensor) -> Any:
            with tf.device(self.device):
                result = function(*arguments)
                return None if isinstance(result, tf.Operation) else result

        return tf.function(on_server, autograph=False).get_concrete_function(*signature)

    def _start_shared(self) -> tf.Operation:
        slots = tf.range(len(self.tables))
        keys = tf.constant([shared_key(table.name) for table in self.tables], tf.int64)
        return self._store.start(slots, keys, tf.zeros_like(slots))

    def _evict(self, step: tf.Tensor) -> tf.Tensor:
        """Frees the slots of who is to go; returns how many of each table, int64 [tables]."""
        excess = overfull(self.tables, self.ranges, self._pool.sizes())
        freed = [self._free(number, excess[number], step) for number in range(len(self.tables))]
        counts = tf.stack(freed)
        forgets = self._candidates.read_value() > self.ranges.capacity // 2
        with tf.control_dependencies([counts, self._evicted.assign_add(counts).op]):
            changed = tf.reduce_any(counts > 0) | forgets
            done = tf.cond(changed, lambda: self._clean(forgets), lambda: tf.constant(True))
        with tf.control_dependencies([done]):
            return tf.identity(counts)

    def _free(self, number: int, excess: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Frees slots of a table; returns how many, int64. Their keys stay in the index, without sightings."""
        table = self.tables[number]

        def free() -> tf.Tensor:
            with tf.device(self.device):
                slots = self._pool.reached(number)
                taken = self._store.sightings.exist(slots)
                (gone,) = _masked(victims(table, excess, *self._store.sightings.read(slots), taken, step), slots)
                with tf.control_dependencies([self._store.sightings.clear(gone), self._pool.give_back(number, gone)]):
                    return tf.size(gone, tf.int64)

        if table.evict == "none":
            return tf.constant(0, tf.int64)
        return tf.cond((excess > 0) | (table.evict == "ttl"), free, lambda: tf.constant(0, tf.int64))

    def _clean(self, forgets: tf.Tensor) -> tf.Tensor:
        """Takes the keys without sightings, and maybe those that wait for a row, out of the index."""
        with tf.device(self.device):
            candidates = tf.where(forgets, 0, self._candidates.read_value())

            def stays(values: tf.Tensor) -> tf.Tensor:
                return tf.where(values < 0, ~forgets, self._store.sightings.exist(tf.maximum(values, 0)))

            kept = self._index.keep(stays, tf.reduce_sum(self._pool.sizes()) + candidates)
            with tf.control_dependencies([kept, self._candidates.assign(candidates).op]):
                return tf.constant(True)

    def _forget(self) -> tf.Operation:
        emptied = self._index.keep(lambda values: tf.zeros_like(values, tf.bool), 0)
        return tf.group(emptied, self._pool.reset(), self._candidates.assign(0).op)

    def _count_all(self) -> list[tf.Tensor]:
        return [self._pool.sizes(), *(v.read_value() for v in (self._refused, self._evicted, self._candidates))]

    def _export(self, start: tf.Tensor) -> list[tf.Tensor]:
        keys, values = self._index.entries(start, start + EXPORT_BUCKETS)
        keys, slots = _masked(values >= 0, keys, values)
        return [keys, slots, self._pool.tables_of(slots)]

    def _restore(self, keys: tf.Tensor, tables: tf.Tensor, *parts: tf.Tensor) -> tf.Tensor:
        slots, placed = self._pool.take(tables, tf.ones_like(tables, tf.bool))
        keys, slots, *state = _masked(placed, keys, slots, *parts)
        with tf.control_dependencies([self._index.insert(keys, slots), self._store.write(slots, state)]):
            return tf.size(keys)


def _masked(mask: tf.Tensor, *parts: tf.Tensor) -> list[tf.Tensor]:
    """The places of `parts` where the mask is true."""
    places = tf.where(mask)[:, 0]
    return [tf.gather(part, places) for part in parts]


def _count(mask: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(mask, tf.int32))
