"""A group of embedding tables on the parameter servers, and what a worker exchanges with them.

A static table's row r stands on server r mod S, of the S that its group is cut over; a dynamic table's key on the server that
holds its bucket (see buckets).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.features.spec import Table
from paraserve.components.train.cluster import PARAMETER_SERVER, device
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.embedding.buckets import server_of
from paraserve.components.train.embedding.dynamic import DynamicShard
from paraserve.components.train.embedding.layout import GroupLayout, IndexedPlaces, Places
from paraserve.components.train.embedding.limits import TableLimits
from paraserve.components.train.embedding.store import RowFormat
from paraserve.components.train.optimizers import Optimizer, Slot, Slotted, add_rows, optimizer, slotted
from paraserve.components.train.wire import Wire

KEY_BYTES = 32
"""What a key takes beyond its row and slots, at most (measured: docs/architecture.md)."""
MIN_SHARD_BYTES = 256 << 10
"""`partitioner: min_size` gives no server less, as TensorFlow's MinSizePartitioner."""


class StaticShard:
    """One server's part of a group of static tables."""

    def __init__(self, server: int, of_group: Slotted):
        self.device, self.slotted = device(PARAMETER_SERVER, server), of_group

    def lookup(self, numbers: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The slots of local rows, int64 [n]: themselves."""
        with tf.device(self.device):
            return tf.identity(numbers)

    def find(self, numbers: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
        with tf.device(self.device):
            return tf.identity(numbers)


Shard = StaticShard | DynamicShard


@dataclass(frozen=True, kw_only=True)
class Want:
    """The distinct rows that an exchange wants of a group."""

    places: IndexedPlaces
    """Which of the rows each place has, in the order that the servers answer in."""
    numbers: Sequence[tf.Tensor]
    """For each server int64 [n]: its rows or keys."""
    tables: Sequence[tf.Tensor]
    """For each server uint8 or int32 [n]: their tables."""
    counts: Sequence[tf.Tensor]
    """For each server int32 [n]: how many places each has."""
    rows_of_table: tf.Tensor
    """int64 [tables]: how many rows are wanted of each table."""


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """Rows on the worker, and where they stand on the servers."""

    parts: Sequence[tf.Tensor]
    """float32 [n, width], server after server: the weights; with them, where wanted, each slot of the optimizer."""
    slots: Sequence[tf.Tensor]
    """For each server, and on it: int32 or int64 [n], where the rows stand."""
    learner: tf.Tensor | None = None
    """int32 [n]: for each row the one that learns in its place, itself but for keys that share a row; None where none may."""

    @property
    def rows(self) -> tf.Tensor:
        """The weights."""
        return self.parts[0]


class Group:
    """A group's tables on all servers."""

    def __init__(self, layout: GroupLayout, config: TrainConfig, servers: int):
        """Makes the tables, drawn on the servers; no row travels. Raises ValueError for budgets that do not fit."""
        self.layout, self._config, self.servers, self.sharding = layout, config, servers, config.sharding
        self.row_format = RowFormat(
            width=layout.width,
            linear=layout.width > layout.dimension,
            deviation=config.embedding_init,
            seed=config.seed,
        )
        self.optimizer: Optimizer = optimizer(config.optimizer)
        self._pulls, self._pushes = Wire(config.pull_dtype), Wire(config.push_dtype, dithered=config.push_dtype != "float32")
        self.shards: Sequence[Shard] = self._dynamic() if layout.dynamic else self._static()

    def want(self, places: Places) -> Want:
        """What the examples want together, each row once."""
        rows, index, counts = self._distinct(places.numbers)
        tables = places.tables_of_rows(index)
        narrow = tf.uint8 if len(self.layout.tables) <= 256 else tf.int32
        server, local = self._route(rows)
        shards = len(self.shards)

        def dealt(values: tf.Tensor) -> list[tf.Tensor]:
            parts: list[tf.Tensor] = tf.dynamic_partition(values, server, shards) if shards > 1 else [values]
            return parts

        order = tf.concat(dealt(tf.range(tf.size(rows))), axis=0)
        return Want(
            places=places.indexed(tf.gather(tf.math.invert_permutation(order), index)),
            numbers=dealt(local),
            tables=dealt(tf.cast(tables, narrow)),
            counts=dealt(counts),
            rows_of_table=tf.math.bincount(tables, minlength=len(self.layout.tables), dtype=tf.int64),
        )

    def pull(self, want: Want, step: tf.Tensor, training: bool, with_slots: bool) -> Pulled:
        """The wanted rows. In training, keys are counted as seen at `step`, int64, and new ones get a row; else the rows are
        exact, whatever the wire's format."""
        wire = self._pulls if training else Wire("float32")
        slots = self.optimizer.slots if with_slots else ()
        places, parts = [], []
        for shard, *wanted in zip(self.shards, want.numbers, want.tables, want.counts, strict=True):
            numbers, tables, counts = wanted
            places.append(shard.lookup(numbers, tables, counts, step) if training else shard.find(numbers, tables))
            with tf.device(shard.device):
                gathered = [
                    tf.raw_ops.ResourceGather(resource=handle, indices=places[-1], dtype=tf.float32)
                    for handle in shard.slotted.handles(slots)
                ]
                parts.append([wire.encode(part) for part in gathered])
        joined = [wire.decode(tf.concat(of_servers, axis=0)) for of_servers in zip(*parts, strict=True)]
        return Pulled(
            parts=[tf.ensure_shape(part, self._shape(i, slots)) for i, part in enumerate(joined)],
            slots=places,
            learner=self._learner(places, tf.shape(joined[0])[0]) if self.layout.dynamic and training else None,
        )

    def _learner(self, slots: Sequence[tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
        """`Pulled.learner`: of the keys that share a row, the first. Else each would teach a copy of its own, and what they
        all made of it, its optimizer's slots included, would be added up."""
        tables = len(self.layout.tables)
        places, shared, start = [], [], tf.constant(0, tf.int64)
        for number, (shard, of_shard) in enumerate(zip(self.shards, slots, strict=True)):
            with tf.device(shard.device):
                here = tf.where(of_shard < tables)[:, 0]
                row = tf.gather(of_shard, here)
            places.append(here + start)
            shared.append(row + number * tables)
            start += tf.size(of_shard, tf.int64)
        of_all, row_of_all = tf.concat(places, axis=0), tf.concat(shared, axis=0)
        first = tf.math.unsorted_segment_min(tf.cast(of_all, tf.int32), row_of_all, tables * len(self.shards))
        return tf.tensor_scatter_nd_update(tf.range(rows), of_all[:, None], tf.gather(first, row_of_all))

    def push(
        self, want: Want, pulled: Pulled, gradient: tf.Tensor, rate: tf.Tensor, step: tf.Tensor, accept: tf.Tensor
    ) -> tf.Tensor:
        """Sends the rows' gradients, float32 [n, width], to their servers, which apply them where `accept`, a bool scalar.

        Rows whose gradient is zero throughout stay at home. Returns how many of each table were sent, int64 [tables].
        """

        def apply(shard: Shard, slots: tf.Tensor, parts: Sequence[tf.Tensor]) -> None:
            self.optimizer.apply_rows(shard.slotted, slots, parts[0], rate, step)

        return self._send(want, pulled, [gradient], accept, apply)

    def add(self, want: Want, pulled: Pulled, changes: Sequence[tf.Tensor], accept: tf.Tensor) -> tf.Tensor:
        """The same for changes of `Pulled.parts`, the optimizer's slots among them, which the servers add."""

        def apply(shard: Shard, slots: tf.Tensor, parts: Sequence[tf.Tensor]) -> None:
            add_rows(shard.slotted, self.optimizer.slots, slots, parts)

        return self._send(want, pulled, changes, accept, apply)

    def _send(
        self,
        want: Want,
        pulled: Pulled,
        parts: Sequence[tf.Tensor],
        accept: tf.Tensor,
        apply: Callable[[Shard, tf.Tensor, Sequence[tf.Tensor]], None],
    ) -> tf.Tensor:
        kept = tf.reduce_any(tf.not_equal(parts[0], 0.0), axis=1)
        sizes = tf.stack([tf.size(numbers) for numbers in want.numbers])
        split = [tf.split(part, sizes) for part in [kept, *parts]]
        for shard, slots, kept_here, *parts_here in zip(self.shards, pulled.slots, *split, strict=True):
            encoded = [self._pushes.encode(tf.boolean_mask(part, kept_here)) for part in parts_here]
            with tf.device(shard.device):
                touched, values = tf.boolean_mask(slots, kept_here), [self._pushes.decode(part) for part in encoded]
                self._where(accept, shard, touched, values, apply)
        tables = tf.cast(tf.concat(want.tables, axis=0), tf.int32)
        return tf.math.bincount(tf.boolean_mask(tables, kept), minlength=len(self.layout.tables), dtype=tf.int64)

    def _where(
        self,
        accept: tf.Tensor,
        shard: Shard,
        slots: tf.Tensor,
        parts: Sequence[tf.Tensor],
        apply: Callable[[Shard, tf.Tensor, Sequence[tf.Tensor]], None],
    ) -> None:
        def accepted() -> tf.Tensor:
            with tf.device(shard.device):
                apply(shard, slots, parts)
                return tf.constant(True)

        tf.cond(accept, accepted, lambda: tf.constant(False))

    def _shape(self, part: int, slots: Sequence[Slot]) -> list[int | None]:
        return [None] if part and slots[part - 1].per_row else [None, self.layout.width]

    def evict(self, step: int) -> npt.NDArray[np.int64]:
        """Takes their rows from keys of dynamic tables that are to go at `step`; how many of each table, [tables].

        For a time when no worker runs: the rows are given to other keys.
        """
        evicted = [shard.evict(step) for shard in self.shards if isinstance(shard, DynamicShard)]
        return np.sum([np.zeros(len(self.layout.tables), np.int64), *evicted], axis=0)

    def forget(self) -> None:
        """Empties dynamic tables; for a time when no worker runs."""
        for shard in self.shards:
            if isinstance(shard, DynamicShard):
                shard.forget()

    def bytes_pulled(self, rows: int, with_slots: bool) -> int:
        """That the pull of so many rows of one table moves, ids included."""
        id_bytes = 8 + 1 + 4 if self.layout.dynamic else 8
        return rows * (id_bytes + self._numbers(with_slots) * self._pulls.bytes)

    def bytes_pushed(self, rows: int, with_slots: bool) -> int:
        """That the push of so many rows of one table moves, with a mark for each of them."""
        return rows * (1 + self._numbers(with_slots) * self._pushes.bytes)

    def _numbers(self, with_slots: bool) -> int:
        """Of a row, and of its slots."""
        width, slots = self.layout.width, self.optimizer.slots if with_slots else ()
        return width + sum(1 if slot.per_row else width for slot in slots)

    def _distinct(self, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The distinct of `numbers`, which of them each is, and how often each stands there; static tables count nothing."""
        if self.layout.dynamic:
            rows, index, counts = tf.unique_with_counts(numbers)
            return rows, index, counts
        rows, index = tf.unique(numbers)
        return rows, index, tf.zeros_like(index)[: tf.size(rows)]

    def _route(self, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The server of each row or key, int32 [n], and what it is called there, int64 [n]."""
        shards = len(self.shards)
        if self.layout.dynamic:
            return server_of(numbers, shards, self.sharding), numbers
        return tf.cast(numbers % shards, tf.int32), numbers // shards

    def _dynamic(self) -> list[DynamicShard]:
        return [
            DynamicShard(
                server=server,
                servers=self.servers,
                sharding=self.sharding,
                tables=[self._limits(table) for table in self.layout.tables],
                rows=self.row_format,
                optimizer=self.optimizer,
            )
            for server in range(self.servers)
        ]

    def _limits(self, table: Table) -> TableLimits:
        return TableLimits(
            name=table.name,
            max_keys=table.max_keys or (table.memory_mb << 20) // (4 * self._numbers(with_slots=True) + KEY_BYTES),
            admit_after=table.admit_after,
            evict=table.evict,
            ttl_steps=table.ttl_steps,
        )

    def _static(self) -> list[StaticShard]:
        count = static_shards(self.layout, self._config.partitioner, self.servers)
        shards = []
        for server in range(count):
            with tf.device(device(PARAMETER_SERVER, server)):
                shards.append(
                    StaticShard(server, slotted(self.optimizer, tf.Variable(self._drawn(server, count), trainable=False)))
                )
        return shards

    def _drawn(self, server: int, count: int) -> tf.Tensor:
        """The first rows of a server: normal, the linear weights 0."""
        layout = self.layout
        draw = hashlib.sha256(f"{self._config.seed}:{layout.name}:{server}".encode()).digest()
        rows = len(range(server, layout.rows, count))
        start = tf.random.stateless_normal(
            [rows, layout.dimension], tf.io.decode_raw(draw[:8], tf.int32), stddev=self._config.embedding_init
        )
        return tf.pad(start, [[0, 0], [0, layout.width - layout.dimension]])


def static_shards(layout: GroupLayout, partitioner: str, servers: int) -> int:
    """Over how many servers the rows of a static group are cut, by TensorFlow's partitioner of that name."""
    partitioners = tf.distribute.experimental.partitioners
    chosen = (
        partitioners.FixedShardsPartitioner(min(servers, layout.rows))
        if partitioner == "fixed"
        else partitioners.MinSizePartitioner(MIN_SHARD_BYTES, max_shards=servers)
    )
    return int(chosen(tf.TensorShape([layout.rows, layout.width]), tf.float32)[0])
