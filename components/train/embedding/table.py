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
from paraserve.components.train.optimizers import Optimizer, Slotted, slotted


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

    def wanted(self, ids: tf.Tensor, spec: FeatureSpec) -> "Wanted":
        """The rows that a batch needs, from its id matrix, int64 [examples, spec.id_width]; a list's padding needs none."""
        numbers, segments = [], {}
        for column in self.columns:
            keys_of_column = ids[:, spec.id_slices[column.name]]
            if isinstance(column, ListColumn):
                present = keys_of_column != keys.PADDING
                segments[column.name] = tf.where(present)[:, 0]
                flat = tf.boolean_mask(keys_of_column, present)
            else:
                flat = keys_of_column[:, 0]
            numbers.append(tf.math.floormod(flat, spec.tables[column.table].rows) + self.offsets[column.table])
        sizes = tf.stack([tf.size(part) for part in numbers])
        return Wanted(
            layout=self, examples=tf.shape(ids)[0], numbers=tf.concat(numbers, axis=0), sizes=sizes, segments=segments
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The rows that a batch needs of one stack, column after column."""

    layout: StackLayout
    examples: tf.Tensor
    """int32 scalar."""
    numbers: tf.Tensor
    """int64 [places]: each value's row."""
    sizes: tf.Tensor
    """int32 [columns]: how many places each column has."""
    segments: Mapping[str, tf.Tensor]
    """For each list column the example that each of its places belongs to: int64, rising."""

    def pooled(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
        """One row for each column and example, float32 [examples, width], from the places' rows, float32 [places, width]."""
        outputs = {}
        parts = tf.split(values, self.sizes, num=len(self.layout.columns))
        for column, rows in zip(self.layout.columns, parts, strict=True):
            if isinstance(column, ListColumn):
                segments = self.segments[column.name]
                rows = tf.math.unsorted_segment_sum(rows, segments, self.examples)
                if column.pooling == "mean":
                    count = tf.math.unsorted_segment_sum(tf.ones_like(segments, values.dtype), segments, self.examples)
                    rows /= tf.maximum(count, 1.0)[:, None]
            # The split forgets that a categorical column has a row for each example.
            outputs[column.name] = tf.ensure_shape(rows, [None, self.layout.width])
        return outputs


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
                shards.append(slotted(optimizer, tf.Variable(padded, trainable=False)))
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

    def apply(
        self, rows: tf.Tensor, gradient: tf.Tensor, optimizer: Optimizer, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        """Sends gradients, float32 [n, width], of the distinct rows `rows`, int64 [n], to their servers, which apply them."""
        servers, local = self._split(rows)
        wanted = tf.dynamic_partition(local, servers, len(self.shards))
        gradients = tf.dynamic_partition(gradient, servers, len(self.shards))
        for shard, part, values in zip(self.shards, wanted, gradients, strict=True):
            with tf.device(shard.variable.device):
                optimizer.apply_rows(shard, part, values, learning_rate, step)

    def _split(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        count = len(self.shards)
        return tf.cast(rows % count, tf.int32), rows // count
