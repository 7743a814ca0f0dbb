"""From a key to its slot: a hash table on a server, of TensorFlow's own kind."""

import math
from collections.abc import Callable

import tensorflow as tf

from paraserve.components.train.embedding.reserved import DELETED, EMPTY

UNKNOWN = -1
"""The value of a key that the index does not hold."""
_START_BUCKETS = 2**16
"""Buckets at first: 0.8 MB. They double when full, in a call that takes 45 ms for a million keys."""
_LOAD = 0.8
"""Buckets are doubled beyond this fill: 0.9 would save a tenth of the memory, and make finding a missing key cost up to 330 ns
instead of 52."""
CHUNK = 2**16
"""Keys that one call may insert: a call makes room for all its keys, whether they are new or not."""


class KeyIndex:
    """Key, int64, to value, int32, on the device of the scope that it is made in; the methods run there.

    A value of 0 or more is the key's slot; one of UNKNOWN - n says that a key without a slot was seen n times.
    """

    def __init__(self) -> None:
        self._table = tf.raw_ops.AnonymousMutableDenseHashTable(
            empty_key=tf.constant(EMPTY, tf.int64),
            deleted_key=tf.constant(DELETED, tf.int64),
            value_dtype=tf.int32,
            value_shape=[],
            initial_num_buckets=_START_BUCKETS,
            max_load_factor=_LOAD,
        )

    def find(self, keys: tf.Tensor) -> tf.Tensor:
        """int32 [n]: the value of each key, int64 [n], UNKNOWN where there is none."""
        values = tf.raw_ops.LookupTableFindV2(table_handle=self._table, keys=keys, default_value=tf.constant(UNKNOWN))
        values.set_shape(keys.shape)
        return values

    def insert(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        """Sets the values of distinct keys."""
        return tf.raw_ops.LookupTableInsertV2(table_handle=self._table, keys=keys, values=values)

    def entries(self, start: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The keys, int64 [n], and values, int32 [n], of the buckets from `start` to `end`; while nobody inserts."""
        keys, values = (tf.reshape(part, [-1])[start:end] for part in self._export())
        used = tf.where(keys != EMPTY)[:, 0]
        return tf.gather(keys, used), tf.gather(values, used)

    def buckets(self) -> tf.Tensor:
        """int32 scalar."""
        return tf.shape(self._export()[0])[0]

    def keep(self, wanted: Callable[[tf.Tensor], tf.Tensor], count: tf.Tensor | int) -> tf.Operation:
        """Makes the table anew of the entries whose values, int32 [n], are `wanted`, bool [n]: `count` entries in all.

        For a time when nobody finds or inserts. Taking single keys out of TensorFlow's table would leave marks, which searches
        must pass, and which an insert may take for the key's place though the key stands further on.
        """
        old = [tf.reshape(part, [-1]) for part in self._export()]
        needed = tf.math.log(tf.cast(count + CHUNK, tf.float64) / _LOAD) / math.log(2.0)
        buckets = tf.maximum(tf.bitwise.left_shift(1, tf.cast(tf.math.ceil(needed), tf.int32)), _START_BUCKETS)
        with tf.control_dependencies(old):
            emptied = tf.raw_ops.LookupTableImportV2(
                table_handle=self._table,
                keys=_of_unknown_shape(tf.fill([buckets, 1], tf.constant(EMPTY, tf.int64))),
                values=_of_unknown_shape(tf.zeros([buckets, 1], tf.int32)),
            )

        def move(start: tf.Tensor) -> tf.Tensor:
            keys, values = (part[start : start + CHUNK] for part in old)
            kept = tf.where((keys != EMPTY) & wanted(values))[:, 0]
            with tf.control_dependencies([self.insert(tf.gather(keys, kept), tf.gather(values, kept))]):
                return start + CHUNK

        with tf.control_dependencies([emptied]):
            every = tf.size(old[0])
            return tf.while_loop(lambda start: start < every, move, [tf.constant(0)], parallel_iterations=1)[0].op

    def _export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The table's own memory, copied nowhere: each bucket's key, int64 [buckets, 1], and value, int32 [buckets, 1]."""
        return tf.raw_ops.LookupTableExportV2(table_handle=self._table, Tkeys=tf.int64, Tvalues=tf.int32)


def _of_unknown_shape(tensor: tf.Tensor) -> tf.Tensor:
    """The import's kernel wants [buckets, 1], the shape check that runs before it [buckets]."""
    return tf.compat.v1.placeholder_with_default(tensor, None)
