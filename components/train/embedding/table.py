"""Static embedding tables, sharded over the parameter servers.

All tables of one dimension are kept as one *stack* of rows, so that a step makes one lookup per server and dimension. Row r of
a stack of S servers is local row r // S on server r % S; a key of table t is row `offset of t + key mod rows of t`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from paraserve.components.features import keys
from paraserve.components.features.spec import CategoricalColumn, FeatureSpec, ListColumn
from paraserve.components.train.cluster import PARAMETER_SERVER, device
from paraserve.components.train.optimizers import Optimizer, Slotted


@dataclass(frozen=True, kw_only=True)
class StackLayout:
    """Which columns and tables share a stack of rows."""

    dimension: int
    """Of the embeddings; a row is one longer where the model wants a linear weight per value."""
    width: int
    """Length of a row."""
    columns: tuple[CategoricalColumn | ListColumn, ...]
    offsets: Mapping[str, int]
    """First row of each table."""
    rows: int

    @property
    def name(self) -> str:
        return f"embedding-{self.dimension}"

    def row_numbers(self, ids: tf.Tensor, spec: FeatureSpec) -> tf.Tensor:
        """Rows of this stack's columns: int64 [examples, places] from the id matrix, int64 [examples, spec.id_width]."""
        places = []
        for column in self.columns:
            rows = tf.math.floormod(ids[:, spec.id_slices[column.name]], spec.tables[column.table].rows)
            places.append(rows + self.offsets[column.table])
        return tf.concat(places, axis=1)


def stack_layouts(spec: FeatureSpec, linear: bool) -> tuple[StackLayout, ...]:
    """The stacks of a spec, one for each embedding dimension."""
    layouts = []
    for dimension in sorted({column.dimension for column in spec.embedded}):
        columns = tuple(column for column in spec.embedded if column.dimension == dimension)
        offsets, rows = {}, 0
        for table in dict.fromkeys(column.table for column in columns):
            offsets[table] = rows
            rows += spec.tables[table].rows
        width = dimension + int(linear)
        layouts.append(StackLayout(dimension=dimension, width=width, columns=columns, offsets=offsets, rows=rows))
    return tuple(layouts)


def pooled(layout: StackLayout, ids: tf.Tensor, values: tf.Tensor, spec: FeatureSpec) -> dict[str, tf.Tensor]:
    """Turns looked-up rows into one row per column.

    Args:
        ids: int64 [examples, spec.id_width], to tell a list's items from its padding.
        values: float32 [examples, places, width], the rows of `layout.row_numbers(ids)`.

    Returns:
        For each column: float32 [examples, width].
    """
    outputs, start = {}, 0
    for column in layout.columns:
        places = spec.id_slices[column.name]
        size = places.stop - places.start
        rows = values[:, start : start + size, :]
        start += size
        if isinstance(column, ListColumn):
            present = tf.cast(ids[:, places] != keys.PADDING, values.dtype)[:, :, None]
            rows_sum = tf.reduce_sum(rows * present, axis=1)
            count = tf.maximum(tf.reduce_sum(present, axis=1), 1.0)
            outputs[column.name] = rows_sum / count if column.pooling == "mean" else rows_sum
        else:
            outputs[column.name] = rows[:, 0, :]
    return outputs


def model_inputs(spec: FeatureSpec, dense: tf.Tensor, columns: Mapping[str, tf.Tensor], linear: bool) -> dict[str, tf.Tensor]:
    """What a model is called with (see models): splits the linear weight, a row's last number, from its embedding."""
    inputs = {"dense": dense, **columns}
    if linear:
        inputs = {"dense": dense, **{name: row[:, :-1] for name, row in columns.items()}}
        weights = [columns[column.name][:, -1:] for column in spec.embedded]
        inputs["linear"] = tf.concat(weights, axis=1) if weights else tf.zeros([tf.shape(dense)[0], 0])
    return inputs


@dataclass(kw_only=True)
class Stack:
    """The rows of a stack on their servers, with optimizer slots."""

    layout: StackLayout
    shards: Sequence[Slotted] = field(repr=False)

    @classmethod
    def create(cls, layout: StackLayout, servers: int, optimizer: Optimizer, init: float, seed: int) -> "Stack":
        """Makes the rows on the servers, drawn there from a normal distribution of standard deviation `init`; the linear
        weights start at 0. No row travels."""
        shards = []
        for server in range(servers):
            with tf.device(device(PARAMETER_SERVER, server)):
                rows = len(range(server, layout.rows, servers))
                draw = hashlib.sha256(f"{seed}:{layout.name}:{server}".encode()).digest()
                start = tf.random.stateless_normal([rows, layout.dimension], tf.io.decode_raw(draw[:8], tf.int32), stddev=init)
                padded = tf.pad(start, [[0, 0], [0, layout.width - layout.dimension]])
                shards.append(optimizer.slotted(tf.Variable(padded, trainable=False)))
        return cls(layout=layout, shards=shards)

    def lookup(self, rows: tf.Tensor) -> tf.Tensor:
        """float32 [n, width], the rows of the numbers `rows`, int64 [n], each from its server."""
        servers, local = self._split(rows)
        order = tf.dynamic_partition(tf.range(tf.size(rows)), servers, len(self.shards))
        parts = []
        for shard, wanted in zip(self.shards, tf.dynamic_partition(local, servers, len(self.shards)), strict=True):
            with tf.device(shard.variable.device):
                parts.append(tf.raw_ops.ResourceGather(resource=shard.variable.handle, indices=wanted, dtype=tf.float32))
        return tf.reshape(tf.dynamic_stitch(order, parts), [-1, self.layout.width])

    def apply(self, rows: tf.Tensor, gradient: tf.Tensor, optimizer: Optimizer, learning_rate: tf.Tensor) -> None:
        """Sends gradients, float32 [n, width], of the distinct rows `rows`, int64 [n], to their servers, which apply them."""
        servers, local = self._split(rows)
        wanted = tf.dynamic_partition(local, servers, len(self.shards))
        gradients = tf.dynamic_partition(gradient, servers, len(self.shards))
        for shard, part, values in zip(self.shards, wanted, gradients, strict=True):
            with tf.device(shard.variable.device):
                optimizer.apply_rows(shard, part, values, learning_rate)

    def _split(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        count = len(self.shards)
        return tf.cast(rows % count, tf.int32), rows // count
