"""Which columns share a group of tables, and how a batch's ids become places in it.

All tables of one dimension and kind are a *group* with rows of one width, so that a step makes one lookup per server and
group. A batch's ids of a group stand one after the other: its categorical columns, column by column, then each list's items.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.features import keys
from paraserve.components.features.spec import CategoricalColumn, FeatureSpec, ListColumn, Table
from paraserve.components.train.embedding.reserved import own_keys


@dataclass(frozen=True, kw_only=True)
class GroupLayout:
    """The tables of a group and the columns that use them."""

    dimension: int
    """Of the embeddings; a row is one longer where the model wants a linear weight per value."""
    width: int
    """Length of a row."""
    dynamic: bool
    """Whether each key has a row of its own (see dynamic); else a key of table t has row `offset of t + key mod rows of t`."""
    categorical: tuple[CategoricalColumn, ...]
    lists: tuple[ListColumn, ...]
    tables: tuple[Table, ...]

    @classmethod
    def all_of(cls, spec: FeatureSpec, linear: bool) -> "tuple[GroupLayout, ...]":
        """The groups of a spec, the smallest dimension first, static before dynamic."""
        kinds = sorted({(c.dimension, spec.tables[c.table].dynamic) for c in spec.embedded})
        return tuple(cls._one_of(spec, linear, *kind) for kind in kinds)

    @classmethod
    def _one_of(cls, spec: FeatureSpec, linear: bool, dimension: int, dynamic: bool) -> "GroupLayout":
        def mine(column: CategoricalColumn | ListColumn) -> bool:
            return column.dimension == dimension and spec.tables[column.table].dynamic == dynamic

        return cls(
            dimension=dimension,
            width=dimension + int(linear),
            dynamic=dynamic,
            categorical=tuple(column for column in spec.categorical if mine(column)),
            lists=tuple(column for column in spec.lists if mine(column)),
            tables=tuple(spec.tables[name] for name in dict.fromkeys(c.table for c in spec.embedded if mine(c))),
        )

    @property
    def name(self) -> str:
        return f"embedding-{self.dimension}{'-dynamic' if self.dynamic else ''}"

    @property
    def columns(self) -> tuple[CategoricalColumn | ListColumn, ...]:
        return (*self.categorical, *self.lists)

    @property
    def rows(self) -> int:
        """Of all static tables."""
        return sum(table.rows for table in self.tables)

    @property
    def offsets(self) -> dict[str, int]:
        """First row of each static table."""
        ends = np.cumsum([table.rows for table in self.tables])
        return {table.name: int(end) - table.rows for table, end in zip(self.tables, ends, strict=True)}

    def table_numbers(self, columns: Sequence[CategoricalColumn | ListColumn]) -> npt.NDArray[np.int32]:
        """int32 [columns]: each one's table, by its place in `tables`."""
        numbers = {table.name: number for number, table in enumerate(self.tables)}
        return np.array([numbers[column.table] for column in columns], np.int32)

    def places(self, ids: tf.Tensor, spec: FeatureSpec) -> "Places":
        """Where ids, int64 [examples, spec.id_width], belong; a list's padding belongs nowhere."""
        numbers, segments = [], []
        if self.categorical:
            block = self._numbers(_columns(ids, [spec.id_slices[c.name].start for c in self.categorical]), self.categorical)
            numbers.append(tf.reshape(tf.transpose(block), [-1]))
        for column in self.lists:
            items = ids[:, spec.id_slices[column.name]]
            present = tf.where(items != keys.PADDING)
            flat = self._numbers(tf.gather_nd(items, present)[:, None], (column,))[:, 0]
            numbers.append(flat)
            segments.append(present[:, 0])
        return Places(
            layout=self,
            examples=tf.shape(ids)[0],
            numbers=tf.concat(numbers, axis=0),
            segments=segments,
        )

    def _numbers(self, ids: tf.Tensor, columns: Sequence[CategoricalColumn | ListColumn]) -> tf.Tensor:
        """int64 [n, columns]: rows of the group, or keys of dynamic tables, from keys of the columns."""
        names = [column.table for column in columns]
        if self.dynamic:
            return own_keys(ids, names)
        rows = {table.name: table.rows for table in self.tables}
        return tf.math.floormod(ids, tf.constant([rows[name] for name in names], tf.int64)) + tf.constant(
            [self.offsets[name] for name in names], tf.int64
        )


@dataclass(frozen=True, kw_only=True)
class Places:
    """What examples want of a group, place after place."""

    layout: GroupLayout
    examples: tf.Tensor
    """int32 scalar."""
    numbers: tf.Tensor
    """int64 [places]: the row, or a dynamic table's key."""
    segments: Sequence[tf.Tensor]
    """For each list the example that each of its places belongs to: int64, rising."""

    def tables(self) -> tf.Tensor:
        """The number of each place's table, int32 [places]."""
        counts = [self.examples] * len(self.layout.categorical) + [tf.size(segments) for segments in self.segments]
        return tf.repeat(self.layout.table_numbers(self.layout.columns), tf.stack(counts))

    def tables_of_rows(self, index: tf.Tensor) -> tf.Tensor:
        """The same of distinct rows, int32 [rows], where `index`, int32 [places], numbers them in the order in which they are
        first met, as tf.unique does."""
        if not self.layout.columns:
            return tf.zeros([0], tf.int32)
        places = self.indexed(index)
        of_block = [tf.reduce_max(places.block, axis=1)] if self.layout.categorical else []
        # Of a column without places it would be the smallest number there is.
        highest = tf.maximum(tf.concat([*of_block, *(tf.reduce_max(part)[None] for part in places.lists)], axis=0), -1)
        # Columns stand one after the other: by a column's end all rows are met that have a number up to its highest.
        count = len(self.layout.columns)
        before = tf.linalg.band_part(tf.ones([count, count], tf.bool), -1, 0)
        met = tf.reduce_max(tf.where(before, highest[None], -1), axis=1) + 1
        news = met - tf.concat([[0], met[:-1]], axis=0)
        return tf.repeat(self.layout.table_numbers(self.layout.columns), news)

    def indexed(self, index: tf.Tensor) -> "IndexedPlaces":
        """With the number of each place's row among pulled ones, int32 [places]."""
        columns = len(self.layout.categorical)
        sizes = [self.examples * columns, *(tf.size(segments) for segments in self.segments)]
        block, *lists = tf.split(index, tf.stack(sizes), num=len(sizes))
        return IndexedPlaces(
            layout=self.layout,
            examples=self.examples,
            block=tf.reshape(block, [columns, self.examples]),
            lists=lists,
            segments=self.segments,
        )


@dataclass(frozen=True, kw_only=True)
class IndexedPlaces:
    """Which of the pulled rows each place has."""

    layout: GroupLayout
    examples: tf.Tensor
    block: tf.Tensor
    """int32 [categorical columns, examples]."""
    lists: Sequence[tf.Tensor]
    """For each list int32 [places]."""
    segments: Sequence[tf.Tensor]

    def between(self, start: tf.Tensor, stop: tf.Tensor) -> "IndexedPlaces":
        """Those of the examples from `start` up to `stop`, int32 scalars."""
        lists, segments = [], []
        for index, of_list in zip(self.lists, self.segments, strict=True):
            first, last = tf.unstack(tf.searchsorted(of_list, tf.cast(tf.stack([start, stop]), tf.int64)))
            lists.append(index[first:last])
            segments.append(of_list[first:last] - tf.cast(start, tf.int64))
        return IndexedPlaces(
            layout=self.layout, examples=stop - start, block=self.block[:, start:stop], lists=lists, segments=segments
        )

    def at(self, rows: tf.Tensor) -> "IndexedPlaces":
        """With row `rows[i]`, int32 [n], where row i is."""
        return dataclasses.replace(
            self, block=tf.gather(rows, self.block), lists=[tf.gather(rows, index) for index in self.lists]
        )

    def flat(self) -> tf.Tensor:
        """int32 [places]."""
        return tf.concat([tf.reshape(self.block, [-1]), *self.lists], axis=0)

    def flat_gradient(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Gradients of `values`, as float32 [places, width] in the order of `flat`."""
        return tf.concat([tf.reshape(gradient, [-1, self.layout.width]) for gradient in gradients], axis=0)

    def values(self, rows: Callable[[tf.Tensor], tf.Tensor]) -> "GroupValues":
        """The places' rows; `rows` gives those of numbers, int32 of any shape: float32 [..., width]."""
        values = [rows(index) for index in self.lists]
        if self.layout.categorical:
            # Column after column: taking one column out of it is no copy.
            values = [rows(self.block), *values]
        return GroupValues(layout=self.layout, values=values, segments=list(self.segments), examples=self.examples)


@dataclass(frozen=True, kw_only=True)
class GroupValues:
    """The rows of a batch's places of a group, as a network takes them."""

    layout: GroupLayout
    values: Sequence[tf.Tensor]
    """float32 [categorical columns, examples, width], where there are such columns, then for each list [places, width]."""
    segments: Sequence[tf.Tensor]
    """For each list int64 [places]."""
    examples: tf.Tensor
    """int32 scalar."""

    @property
    def tensors(self) -> list[tf.Tensor]:
        return [*self.values, *self.segments, self.examples]

    @classmethod
    @tf.autograph.experimental.do_not_convert
    def of(cls, layout: GroupLayout, tensors: Iterator[tf.Tensor]) -> "GroupValues":
        """The same from `tensors`."""
        values = [next(tensors) for _ in range(bool(layout.categorical) + len(layout.lists))]
        segments = [next(tensors) for _ in layout.lists]
        return cls(layout=layout, values=values, segments=segments, examples=next(tensors))

    @tf.autograph.experimental.do_not_convert
    def columns(self) -> dict[str, tf.Tensor]:
        """One row for each column and example, float32 [examples, width]."""
        outputs: dict[str, tf.Tensor] = {}
        lists = self.values
        if self.layout.categorical:
            block, *lists = self.values
            outputs = dict(zip([c.name for c in self.layout.categorical], tf.unstack(block), strict=True))
        for column, rows, segments in zip(self.layout.lists, lists, self.segments, strict=True):
            outputs[column.name] = self._pooled(column, rows, segments)
        return outputs

    def _pooled(self, column: ListColumn, rows: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
        pooled = tf.math.unsorted_segment_sum(rows, segments, self.examples)
        if column.pooling == "mean":
            count = tf.math.unsorted_segment_sum(tf.ones_like(segments, rows.dtype), segments, self.examples)
            pooled /= tf.maximum(count, 1.0)[:, None]
        return tf.ensure_shape(pooled, [None, self.layout.width])


def place_specs(layout: GroupLayout) -> list[tf.TensorSpec]:
    """The signature of `GroupValues.tensors`."""
    block = [tf.TensorSpec([len(layout.categorical), None, layout.width])] if layout.categorical else []
    values = [tf.TensorSpec([None, layout.width]) for _ in layout.lists]
    return [*block, *values, *(tf.TensorSpec([None], tf.int64) for _ in layout.lists), tf.TensorSpec([], tf.int32)]


@tf.autograph.experimental.do_not_convert  # conversion takes time, and there is nothing to convert
def model_inputs(spec: FeatureSpec, dense: tf.Tensor, columns: Mapping[str, tf.Tensor], linear: bool) -> dict[str, tf.Tensor]:
    """What a model is called with (see models): splits the linear weight, a row's last number, from its embedding."""
    inputs = {"dense": dense, **columns}
    if linear:
        inputs = {"dense": dense, **{name: row[:, :-1] for name, row in columns.items()}}
        weights = [columns[column.name][:, -1:] for column in spec.embedded]
        inputs["linear"] = tf.concat(weights, axis=1) if weights else tf.zeros([tf.shape(dense)[0], 0])
    return inputs


def _columns(ids: tf.Tensor, places: Sequence[int]) -> tf.Tensor:
    """int64 [examples, columns]: some columns of an id matrix; neighbours without a search."""
    first, count = places[0], len(places)
    if list(places) == list(range(first, first + count)):
        return ids[:, first : first + count]
    return tf.gather(ids, places, axis=1)
